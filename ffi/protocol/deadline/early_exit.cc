#include "ffi/protocol/deadline/early_exit.h"

#include <algorithm>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/base/log_scale.h"

namespace optireduce {
namespace {

// Source: OptiReduce, NSDI'25: t_B is the 95th percentile of the first 20 times, the 19th shortest.
constexpr std::size_t kHardBoundRank = 19;

// Chosen: after the paper's description, which gives no figure: the moving average keeps 0.95 of
// its old value.
constexpr double kAverageKept = 0.95;

// Source: the public code waits 100 us for each ms of t_C.
constexpr int kPercentFirst = 10;
// Chosen: after the paper's description, which gives no figure: doubled above 0.1 % up to 50 %, one
// point less below 0.01 %. The paper counts all missing data; a longer wait brings no data that the
// network has lost.
constexpr int kPercentMax = 50;
constexpr double kLateHigh = 1e-3;
constexpr double kLateLow = 1e-4;
// Chosen: at 0 a stage would end at the first gap between two datagrams.
constexpr int kPercentMin = 1;

// Chosen: after the paper's description, which gives no figure: 3 calls of 20 that end with more
// than 10 % missing.
constexpr double kMissingMax = 0.1;
constexpr std::size_t kCutsToRecalibrate = 3;

// Chosen: 16 bits hold the 63 of a Duration in steps of 2^-10.
constexpr int kCodeBits = 10;
constexpr std::uint32_t kCodeMax =
    LogStep<kCodeBits>(static_cast<std::uint64_t>(Duration::max().count()));
static_assert(kCodeMax <= UINT16_MAX);

Duration Times(Duration duration, double factor) {
  return Duration(static_cast<std::int64_t>(static_cast<double>(duration.count()) * factor));
}

}  // namespace

EarlyExit::EarlyExit(Duration bound, std::size_t members, std::size_t own)
    : bound_(bound), own_(own), hard_bound_(bound), samples_(members), percent_(kPercentFirst) {
  OR_CHECK(bound > Duration(0));
  OR_CHECK(own < members);
  sorted_.reserve(members);
}

Duration EarlyExit::EndStage(const StageEnd& end) {
  OR_CHECK(end.received_bytes <= end.expected_bytes);
  if (!calibrated()) Calibrate(end);
  const Duration sample = SampleOf(end);
  samples_[own_] = sample;
  const Duration median = MedianOfMembers();
  average_ = average_ ? Times(*average_, kAverageKept) + Times(median, 1 - kAverageKept) : median;
  if (end.expected_bytes == 0) return sample;
  const auto expected = static_cast<double>(end.expected_bytes);
  AdaptGrace(static_cast<double>(std::exchange(late_bytes_, 0)) / expected);
  const double loss = 1 - static_cast<double>(end.received_bytes) / expected;
  // Loss on the way that did not delay the stage is no evidence about the bound.
  if (calibrated()) RecordCut(end.exit == StageExit::kExpired && loss > kMissingMax);
  return sample;
}

void EarlyExit::Told(std::size_t member, std::optional<Duration> sample) {
  OR_CHECK(member < samples_.size() && member != own_);
  if (sample) samples_[member] = sample;
}

void EarlyExit::RecordCut(bool cut) {
  cuts_ <<= 1;
  cuts_.set(0, cut);
  if (cuts_.count() < kCutsToRecalibrate) return;
  cuts_.reset();
  calibration_count_ = 0;
  hard_bound_ = bound_;
}

Duration EarlyExit::early_bound() const { return std::min(average_.value_or(bound_), hard_bound_); }

Duration EarlyExit::grace() const {
  return calibrated() ? Times(early_bound(), grace_fraction()) : hard_bound_;
}

Duration EarlyExit::SampleOf(const StageEnd& end) const {
  if (end.exit == StageExit::kExpired) return hard_bound_;
  if (end.exit == StageExit::kComplete || end.expected_bytes == 0) {
    return std::min(end.elapsed, hard_bound_);
  }
  // Compared before the division: with next to no data received the quotient exceeds a Duration.
  const double received =
      static_cast<double>(end.received_bytes) / static_cast<double>(end.expected_bytes);
  // Without the wait: with it the usual time would grow by itself.
  const Duration until_last = end.elapsed - end.idle;
  if (Times(hard_bound_, received) <= until_last) return hard_bound_;
  return Times(until_last, 1 / received);
}

// A call that did not complete was cut: its true time is unknown, so it counts as the longest.
void EarlyExit::Calibrate(const StageEnd& end) {
  calibration_[calibration_count_++] =
      end.exit == StageExit::kComplete ? std::min(end.elapsed, bound_) : bound_;
  if (!calibrated()) return;
  const auto at = calibration_.begin() + (kHardBoundRank - 1);
  std::nth_element(calibration_.begin(), at, calibration_.end());
  hard_bound_ = std::max(*at, Duration(1));
}

Duration EarlyExit::MedianOfMembers() {
  sorted_.clear();
  for (const std::optional<Duration>& sample : samples_) {
    if (sample) sorted_.push_back(std::min(*sample, hard_bound_));
  }
  std::sort(sorted_.begin(), sorted_.end());
  const std::size_t middle = sorted_.size() / 2;
  if (sorted_.size() % 2 == 1) return sorted_[middle];
  return sorted_[middle - 1] + (sorted_[middle] - sorted_[middle - 1]) / 2;
}

void EarlyExit::AdaptGrace(double late) {
  if (late > kLateHigh) percent_ = std::min(2 * percent_, kPercentMax);
  if (late < kLateLow) percent_ = std::max(percent_ - 1, kPercentMin);
}

std::uint16_t EncodeDuration(std::optional<Duration> duration) {
  if (!duration) return 0;
  const std::int64_t ns = std::max(duration->count(), Duration::rep{1});
  return static_cast<std::uint16_t>(LogStep<kCodeBits>(static_cast<std::uint64_t>(ns)));
}

std::optional<Duration> DecodeDuration(std::uint16_t code) {
  if (code == 0) return std::nullopt;
  const std::uint32_t known = std::min<std::uint32_t>(code, kCodeMax);
  return Duration(static_cast<std::int64_t>(LogStepBegin<kCodeBits>(known)));
}

}  // namespace optireduce
