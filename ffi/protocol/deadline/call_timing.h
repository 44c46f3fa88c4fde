// When the stages of a collective's calls close: at the user's time, or at one learned from how its
// calls went before. One instance for each collective that has a stage with a deadline.
//
// Where late data is deferred, its true times are known (DeadlineController). Where it is dropped,
// the first calls retransmit what is lost, to measure how long a whole one takes (EarlyExit).

#ifndef FFI_PROTOCOL_DEADLINE_CALL_TIMING_H_
#define FFI_PROTOCOL_DEADLINE_CALL_TIMING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/deadline/deadline_controller.h"
#include "ffi/protocol/deadline/early_exit.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

enum class Stage : std::uint8_t { kReduceScatter, kAllGather };
// Source: an allreduce has these two.
inline constexpr std::size_t kStages = 2;
inline constexpr std::array<Stage, kStages> kBothStages = {Stage::kReduceScatter,
                                                           Stage::kAllGather};

class CallTiming {
 public:
  // `late_budget` 0: the deadlines of the spec; else they are the bounds of learned ones. With
  // `suspend`, ranks that lag are not waited for.
  CallTiming(const CollectiveSpec& spec, MemberIndex self, double late_budget, bool suspend);

  // A call opens; the deadlines count from here.
  void Open();
  Duration reduce_scatter_deadline() const;
  // Of both stages together; at least that of the first.
  Duration call_deadline() const;
  // What the deadlines of the spec would have to be together for none of the learned ones to be cut
  // short by its bound; zero until something is learned.
  Duration deadline_needed() const;

  // ---- Where late data is deferred: see DeadlineController.
  void Began(Stage stage, MemberIndex source, Duration after_opening);
  void Arrived(Stage stage, MemberIndex source, Duration after_opening, Duration after_beginning,
               double share);
  // Its contributions come too late in most calls, and nobody waits for them.
  bool straggles(MemberIndex source) const {
    return deferring_[0] && deferring_[0]->straggles(source.index());
  }

  // ---- Where late data is dropped: see EarlyExit.
  // What is lost is sent again, so that the time of a whole call becomes known.
  bool calibrating() const;
  Duration grace(Stage stage) const;
  void Ended(Stage stage, const StageEnd& end);
  // This rank's latest sample for the header of a contribution, and one that came in such a header.
  // Contributions with an even number tell of the first stage, the others of the second.
  std::uint16_t SampleFor(CallId call, SegmentIndex segment) const;
  void HandleSample(MemberIndex from, CallId call, SegmentIndex segment, std::uint16_t code);

 private:
  Duration HardBound(Stage stage) const;  // t_B
  static constexpr std::size_t Index(Stage stage) { return static_cast<std::size_t>(stage); }

  std::array<Duration, kStages> fixed_;
  bool learns_;
  std::array<std::optional<DeadlineController>, kStages> deferring_;
  std::array<std::optional<EarlyExit>, kStages> dropping_;
  std::array<std::uint16_t, kStages> samples_{};
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DEADLINE_CALL_TIMING_H_
