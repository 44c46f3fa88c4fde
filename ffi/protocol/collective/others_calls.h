// The calls of the other members of a collective, as this rank has seen them. A collective and its
// successors have one of these. A call stands here for its number in the session.

#ifndef FFI_PROTOCOL_COLLECTIVE_OTHERS_CALLS_H_
#define FFI_PROTOCOL_COLLECTIVE_OTHERS_CALLS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"

namespace optireduce {

class OthersCalls {
 public:
  // Some member has made the call.
  void Record(Instant now, Sequence call) {
    if (newest_ && call <= *newest_) return;
    const bool usual = !std::exchange(awaited_, false);
    if (newest_ && usual) intervals_[interval_count_++ % kIntervals] = now - newest_at_;
    newest_ = call;
    newest_at_ = now;
  }

  // Some of their calls were seen in a collective that has turned out to be a successor.
  void Join(const OthersCalls& successor) {
    if (successor.newest_ > newest_) *this = successor;
  }

  // A rank waits for the next call, possibly for long. If the others wait for that rank, outside of
  // the session, it waits in vain: the time until the next call tells nothing.
  void RecordWait() { awaited_ = true; }

  // The newest call that some other member has made.
  std::optional<Sequence> newest() const { return newest_; }
  // The others have made a newer call by then, unless they have become slower.
  Instant NextDue() const { return SaturatingAdd(newest_at_, kIntervalMargin * Interval()); }
  // The usual time from one of their calls to the next; 0 if none is known.
  Duration Interval() const {
    const std::size_t known = std::min(interval_count_, kIntervals);
    if (known == 0) return {};
    auto intervals = intervals_;
    const auto usual = intervals.begin() + (known - 1 - known / kIntervalsPerOutlier);
    std::nth_element(intervals.begin(), usual, intervals.begin() + known);
    return *usual;
  }

 private:
  // Chosen: slow calls among the last ones do not end the wait for the next. But of each four the
  // longest does not count.
  static constexpr std::size_t kIntervals = 8;
  static constexpr std::size_t kIntervalsPerOutlier = 4;
  static constexpr int kIntervalMargin = 2;

  std::optional<Sequence> newest_;
  Instant newest_at_{};  // the time when it was first seen
  bool awaited_ = false;
  std::array<Duration, kIntervals> intervals_{};
  std::size_t interval_count_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_OTHERS_CALLS_H_
