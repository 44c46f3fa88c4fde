// The calls of the other members of a collective, as a rank has seen them, where ranks that were
// absent skip calls (lifecycle/catch_up.h). A collective and its successors
// have one of these. A call stands here for its number in the session.

#ifndef FFI_PROTOCOL_COLLECTIVE_CALL_NUMBERS_H_
#define FFI_PROTOCOL_COLLECTIVE_CALL_NUMBERS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"

namespace optireduce {

class CallNumbers {
 public:
  // ---- The others.

  // A member has made the call.
  void RecordCalled(Instant now, Rank member, Sequence call) {
    const auto drain = draining_.find(member);
    if (drain != draining_.end() && call > drain->second) draining_.erase(drain);
    RecordNewest(now, call);
  }
  // A sum of the call has come, so that some member has made it: contributions come to owners only.
  void RecordSum(Instant now, Sequence call) { RecordNewest(now, call); }
  // The newest call that some other member has made.
  std::optional<Sequence> newest() const { return newest_; }
  // The others have made a newer call by then, unless they have become slower.
  Instant NextDue() const {
    const std::size_t known = std::min(interval_count_, kIntervals);
    if (known == 0) return newest_at_;
    auto intervals = intervals_;
    const auto usual = intervals.begin() + (known - 1 - known / kIntervalsPerOutlier);
    std::nth_element(intervals.begin(), usual, intervals.begin() + known);
    return SaturatingAdd(newest_at_, kIntervalMargin * *usual);
  }

  // ---- Drains, which have one number on all ranks.

  // A drain of this rank begins, or is over before it begins.
  void BeginDrain(Sequence number) {
    drained_ = number;
    told.reset();
    draining_.clear();
    begun_.reset();
    given_up_.reset();
  }
  // A member waits in a drain, whose number may not be below `least`.
  void RecordDraining(Rank member, Sequence least) {
    if (drained_ && least <= *drained_) return;
    Sequence& known = draining_.try_emplace(member, least).first->second;
    known = std::max(known, least);
  }
  std::optional<Sequence> Draining(Rank member) const {
    const auto at = draining_.find(member);
    return at == draining_.end() ? std::nullopt : std::optional(at->second);
  }
  // A member has begun the drain, after all had told its number.
  void RecordBegun(Sequence drain) {
    if (!drained_ || drain > *drained_) begun_ = drain;
  }
  std::optional<Sequence> begun() const { return begun_; }
  // A member has given up the drain that the others wait in, or come to next.
  void RecordGivenUp(CallId drain) {
    if (!drained_ || drain.sequence > *drained_) given_up_ = drain;
  }
  std::optional<CallId> given_up() const { return given_up_; }
  // The number of its own drain that this rank has told the others, until it begins.
  std::optional<Sequence> told;

  // ---- Waits of this rank for the next call of the others.

  // This rank waits before the call, if it is behind. After a wait in vain it waits in half of the
  // calls, then in a quarter: in calls of the same numbers as other ranks that are behind, so that
  // they get in step together. Ranks that pass each other skip every second call or more.
  bool MayWait(Sequence call) const {
    return call.value() / kCallsWithWaits % (1U << waits_in_vain_) == 0;
  }
  // The call of this rank begins. `behind`: it has missed earlier calls of the others, who have not
  // begun this one.
  void Begin(Sequence call, bool behind) {
    if (!behind) {
      waits_in_vain_ = 0;
    } else if (MayWait(call)) {
      waited_in_vain_ = true;
      waits_in_vain_ = std::min(waits_in_vain_ + 1, kWaitsInVainMax);
    }
  }

  // Calls that this rank has made after a member had left. With fewer skipped calls, that member
  // needed fewer numbers for the same program.
  std::uint32_t outlasting = 0;

 private:
  void RecordNewest(Instant now, Sequence call) {
    if (newest_ && call <= *newest_) return;
    // During a wait in vain the others may have waited for this rank, outside of the session.
    const bool usual = !std::exchange(waited_in_vain_, false);
    if (newest_ && usual) intervals_[interval_count_++ % kIntervals] = now - newest_at_;
    newest_ = call;
    newest_at_ = now;
  }

  // Chosen: slow calls among the last ones do not end the wait for the next. But of each four the
  // longest does not count, for the same reason as intervals of waits in vain: else each wait would
  // be longer than the one before.
  static constexpr std::size_t kIntervals = 8;
  static constexpr std::size_t kIntervalsPerOutlier = 4;
  static constexpr int kIntervalMargin = 2;
  // Chosen: a rank that others wait for outside of the session waits in one of 64 calls.
  static constexpr int kWaitsInVainMax = 6;
  static constexpr std::uint32_t kCallsWithWaits = 4;

  std::optional<Sequence> newest_;
  Instant newest_at_{};          // the time when it was first seen
  int waits_in_vain_ = 0;        // waits since this rank was in step
  bool waited_in_vain_ = false;  // the wait since the newest call was in vain
  std::array<Duration, kIntervals> intervals_{};
  std::size_t interval_count_ = 0;
  std::optional<Sequence> drained_;  // the newest drain that this rank has begun
  std::map<Rank, Sequence> draining_;
  std::optional<Sequence> begun_;
  std::optional<CallId> given_up_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_CALL_NUMBERS_H_
