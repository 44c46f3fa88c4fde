// End of a stage that drops late data: at the hard bound t_B, or earlier, once the last segments of
// every peer have arrived and then nothing more for x % of the usual time t_C. One instance for
// each stage of a collective. The bound is learned from the first calls, and again if it cuts off
// too much. Source: OptiReduce, NSDI'25, section 3.2.

#ifndef FFI_PROTOCOL_DEADLINE_EARLY_EXIT_H_
#define FFI_PROTOCOL_DEADLINE_EARLY_EXIT_H_

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ffi/base/time.h"

namespace optireduce {

// The end of a stage.
enum class StageExit : std::uint8_t {
  kComplete,  // all data arrived
  kExpired,   // the hard bound was reached
  kEarly,     // the grace period after the last segments ended
};

struct StageEnd {
  StageExit exit = StageExit::kComplete;
  Duration elapsed{};
  Duration idle{};  // the part of `elapsed` after the last data
  std::uint64_t received_bytes = 0;
  std::uint64_t expected_bytes = 0;
};

class EarlyExit {
 public:
  // `bound` is the user's: never exceeded, and the hard bound until calibrated. `own` is this
  // rank's index among the `members`.
  EarlyExit(Duration bound, std::size_t members, std::size_t own);

  // Handles the end of one stage. Returns the sample for the other members.
  Duration EndStage(const StageEnd& end);
  // Data of an earlier stage has come after its end.
  void CameLate(std::uint64_t bytes) { late_bytes_ += bytes; }
  // Handles the sample of another member, which has no value if that member has none yet.
  void Told(std::size_t member, std::optional<Duration> sample);
  bool calibrated() const { return calibration_count_ == calibration_.size(); }
  Duration hard_bound() const { return hard_bound_; }         // t_B
  Duration early_bound() const;                               // t_C, at most t_B
  double grace_fraction() const { return percent_ / 100.0; }  // x
  // Time to wait after the last segments of every peer. The hard bound until calibrated: a time cut
  // short by an early exit would be no evidence about the whole.
  Duration grace() const;

 private:
  // Source: OptiReduce, NSDI'25: 20 iterations.
  static constexpr std::size_t kCalibrationCalls = 20;

  Duration SampleOf(const StageEnd& end) const;
  void Calibrate(const StageEnd& end);
  Duration MedianOfMembers();
  void AdaptGrace(double late);
  // Measures the hard bound again, as at the start, if it has become too short.
  void RecordCut(bool cut);

  Duration bound_;
  std::size_t own_;
  Duration hard_bound_;
  std::array<Duration, kCalibrationCalls> calibration_{};
  std::size_t calibration_count_ = 0;
  // Chosen: after the paper's description, which gives no figure: cuts are counted over 20 calls.
  std::bitset<20> cuts_;  // the last calls that were cut short with too much missing; bit 0: latest
  std::vector<std::optional<Duration>> samples_;  // the latest of every member
  std::vector<Duration> sorted_;                  // the known ones, for the median
  std::optional<Duration> average_;
  std::uint64_t late_bytes_ = 0;  // late bytes since the end of the last stage
  int percent_;
};

// A Duration in 16 bits for the wire, with an error below 0.1 %; 0: unknown. Longer durations have
// larger codes. Values up to 0 are encoded as 1 ns, the shortest known duration.
std::uint16_t EncodeDuration(std::optional<Duration> duration);
// Rounded down; any code is valid, and codes above the longest Duration represent the longest.
std::optional<Duration> DecodeDuration(std::uint16_t code);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DEADLINE_EARLY_EXIT_H_
