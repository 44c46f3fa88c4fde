// Closing times of the stages of a collective's calls: the user's, or times learned from earlier
// calls. One instance for each collective that has a stage with a deadline.
//
// If late data is deferred, its true times become known (DeadlineController). If it is dropped, the
// first calls retransmit lost data, to measure the duration of a whole call (EarlyExit).

#ifndef FFI_PROTOCOL_DEADLINE_CALL_TIMING_H_
#define FFI_PROTOCOL_DEADLINE_CALL_TIMING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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
constexpr std::size_t Index(Stage stage) { return static_cast<std::size_t>(stage); }

class CallTiming {
 public:
  // `late_budget` 0: the deadlines of the spec are used; otherwise they bound the learned ones.
  // With `goes_on`, calls do not wait for lagging ranks.
  CallTiming(const CollectiveSpec& spec, MemberIndex self, double late_budget, bool goes_on);

  // The collective continues one of an earlier session: see DeadlineController. The times of
  // dropped data are measured again, by all members together.
  void ContinueFrom(const CallTiming& earlier);
  // A call opens; the deadlines count from here.
  void Open(Instant now);
  Duration reduce_scatter_deadline() const;
  // The deadline of both stages together; at least that of the first.
  Duration call_deadline() const;
  // The least sum of the spec's deadlines that would not bound any learned deadline; zero until one
  // is learned.
  Duration deadline_needed() const;

  // ---- Deferred late data: see DeadlineController.
  void Began(Stage stage, MemberIndex source, Duration after_opening);
  void Arrived(Stage stage, MemberIndex source, Duration after_opening, Duration after_beginning,
               double share);
  // The contributions of `source` are late in most calls, and calls do not wait for them.
  bool straggles(MemberIndex source) const {
    return deferring_[0] && deferring_[0]->straggles(source.index());
  }

  // ---- Dropped late data: see EarlyExit.
  // True while lost data is retransmitted to learn the duration of a whole call.
  bool calibrating() const;
  // Whether another member measures, as its latest data tells.
  bool measures(MemberIndex member) const { return measures_[member.index()]; }
  void HandleMeasures(MemberIndex member, bool measures) { measures_[member.index()] = measures; }
  void CameLate(Stage stage, std::uint64_t bytes) {
    if (auto& controller = dropping_[Index(stage)]) controller->CameLate(bytes);
  }
  Duration grace(Stage stage) const;
  void Ended(Stage stage, const StageEnd& end);
  // This rank's latest sample for the header of a contribution, and a sample received in one.
  // Contributions with an even number carry the sample of the first stage, the others that of the
  // second.
  std::uint16_t SampleFor(CallId call, SegmentIndex segment) const;
  void HandleSample(MemberIndex from, CallId call, SegmentIndex segment, std::uint16_t code);

 private:
  Duration HardBound(Stage stage) const;  // t_B

  std::array<Duration, kStages> fixed_;
  bool learns_;
  std::array<std::optional<DeadlineController>, kStages> deferring_;
  std::array<std::optional<EarlyExit>, kStages> dropping_;
  std::array<std::uint16_t, kStages> samples_{};
  std::vector<bool> measures_;  // one for each member
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DEADLINE_CALL_TIMING_H_
