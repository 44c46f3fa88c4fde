// When a stage that drops what is late may end: at the hard bound t_B, or earlier, once the last
// segments of every peer were seen and then nothing came for x % of the usual time t_C. One
// instance for each stage of a collective. The bound is learned from the first calls, and again
// when it cuts too much off. Source: OptiReduce, NSDI'25, section 3.2.

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

// How a stage ended.
enum class StageExit : std::uint8_t {
  kComplete,  // everything came
  kExpired,   // the hard bound was reached
  kEarly,     // the grace after the last segments was over
};

struct StageEnd {
  StageExit exit = StageExit::kComplete;
  Duration elapsed{};
  std::uint64_t received_bytes = 0;
  std::uint64_t expected_bytes = 0;
};

class EarlyExit {
 public:
  // `bound` is the user's: never exceeded, and the hard bound until calibrated. `own` is this rank
  // among the `members`.
  EarlyExit(Duration bound, std::size_t members, std::size_t own);

  // One stage ended here. Returns what to tell the other members.
  Duration EndStage(const StageEnd& end);
  // What another member told; no value if it knows nothing yet.
  void Told(std::size_t member, std::optional<Duration> sample);
  bool calibrated() const { return calibration_count_ == calibration_.size(); }
  Duration hard_bound() const { return hard_bound_; }         // t_B
  Duration early_bound() const;                               // t_C, at most t_B
  double grace_fraction() const { return percent_ / 100.0; }  // x
  // How long to wait after the last segments of every peer were seen. The hard bound until
  // calibrated: a time that was cut short by an early exit would say nothing about the whole.
  Duration grace() const;

 private:
  // Source: OptiReduce, NSDI'25: 20 iterations.
  static constexpr std::size_t kCalibrationCalls = 20;

  Duration SampleOf(const StageEnd& end) const;
  void Calibrate(const StageEnd& end);
  Duration MedianOfMembers();
  void AdaptGrace(double loss);
  // Measures the hard bound again, as at the start, when it has become too short.
  void NoteCut(bool cut);

  Duration bound_;
  std::size_t own_;
  Duration hard_bound_;
  std::array<Duration, kCalibrationCalls> calibration_{};
  std::size_t calibration_count_ = 0;
  // Chosen: as the paper is described, which prints no figure: cuts are counted over 20 calls.
  std::bitset<20> cuts_;  // of the last calls, those cut short with too much missing; bit 0: latest
  std::vector<std::optional<Duration>> samples_;  // the latest of every member
  std::vector<Duration> sorted_;                  // of those that are known, for the median
  std::optional<Duration> average_;
  int percent_;
};

// A Duration in 16 bits for the wire, with an error below 0.1 %; 0 says that it is not known. A
// longer one has the larger code. Up to 0 encodes as 1 ns, the shortest that is known.
std::uint16_t EncodeDuration(std::optional<Duration> duration);
// Rounded down; any code is valid, those above the longest Duration stand for it.
std::optional<Duration> DecodeDuration(std::uint16_t code);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DEADLINE_EARLY_EXIT_H_
