#include "ffi/protocol/deadline/deadline_controller.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/protocol/deadline/progress.h"

namespace optireduce {
namespace {

// Source: OptiReduce, NSDI'25: t_B comes from the first 20 calls.
constexpr std::size_t kCalibrationCalls = 20;

// Chosen: about one late segment in a hundred costs less than any wait for it.
constexpr double kNegligibleShare = 0.01;

// Chosen: a memory of a hundred calls, the fewest of which one per cent, the share that may be
// late, is a call.
constexpr double kKeptPerCall = 0.99;

// Chosen: a tail of P99/P50 = 3 reaches this factor beyond its P99 once in 10^7 calls.
constexpr int kFarBeyond = 4;
// Chosen: a frozen rank makes max_lag + 1 = 3 calls late, and its retransmissions one or two more.
constexpr std::size_t kOddCallsMax = 5;
// Chosen: an event in fewer than one call of ten does not justify a longer wait in all of them.
constexpr std::size_t kOddOneIn = 10;

// Chosen: an eighth more. In simulation (4 ranks, 4 MiB, 1 Gbit/s) no data is late then on a
// healthy network; without a margin 1.2 % was. With ranks that stall for 20 ms, the 99th percentile
// of the calls was 1.61 times the wire time without a margin, 1.69 with an eighth, 1.90 with a
// fourth. On busy hosts a sixteenth made 1.4 % late, and calls longer.
constexpr int kMarginNumerator = 9;
constexpr int kMarginDenominator = 8;

// Chosen: a larger overshoot is corrected at once; a smaller one fades with the memory.
constexpr int kOvershootMax = 2;
// Chosen: if a third of the earlier calls were longer, 18 shorter ones in a row have a probability
// of 1 in 1500; if fewer were longer, they are the tail of the distribution.
constexpr double kLongerBefore = 1.0 / 3;

// Chosen: between ranks of equal speed the typical beginnings differ by less than this factor.
constexpr int kStragglerFactor = 4;
// Chosen: a slow rank that skips every second call begins the others in time; one that pauses is
// late in fewer than a third.
constexpr double kStragglerCalls = 1.0 / 3;
// Chosen: the first two calls of a program wait for compilers, the second since JAX compiles a step
// anew for its own outputs. Among five calls, two that are late are no more than a third.
constexpr std::size_t kBeginningsMin = 5;

// The remaining weight of this many calls, as a number of calls.
double WeightOf(std::size_t calls) {
  return (1 - std::pow(kKeptPerCall, static_cast<double>(calls))) / (1 - kKeptPerCall);
}

}  // namespace

DeadlineController::DeadlineController(const DeadlineOptions& options, std::size_t sources)
    : options_(options), sources_(sources), scratch_(sources) {
  OR_CHECK(options.late_budget > 0 && options.late_budget < 1);
  OR_CHECK(options.bound > Duration(0));
  OR_CHECK(sources > 0);
}

void DeadlineController::ContinueFrom(const DeadlineController& earlier) {
  if (calibrated() || !earlier.calibrated()) return;
  DeadlineController continued = earlier;
  continued.options_ = options_;
  continued.sources_ = std::move(sources_);
  continued.scratch_ = std::move(scratch_);
  continued.call_ = call_;
  continued.opened_at_ = opened_at_;
  continued.ForgetOdd();
  *this = std::move(continued);
}

void DeadlineController::BeginCall(Instant now) {
  RecordPeriod(now, call_.ExceededBy(NegligibleShare()));
  if (call_.total() > 0) LearnFromCall();
  FindStragglers();
  chosen_ = Choose();
}

void DeadlineController::RecordPeriod(Instant now, Duration needed) {
  if (opened_at_ && call_.total() > 0) {
    const Duration waited = std::min(needed, deadline());
    computations_.Add(std::max(now - *opened_at_ - waited, Duration(0)));
    transfers_.Add(std::ranges::max(sources_, {}, &Source::longest_transfer).longest_transfer);
  }
  opened_at_ = now;
}

double DeadlineController::NegligibleShare() const {
  return std::min(kNegligibleShare, options_.late_budget);
}

Duration DeadlineController::Choose() const {
  const Waits waits{.data = memory_,
                    .calls = asked_,
                    .computation = computations_.Median(),
                    .transfer = transfers_.Mean()};
  return BestDeadline(waits, memory_.ExceededBy(options_.late_budget), learned_);
}

void DeadlineController::Began(std::size_t source, Duration after_opening) {
  OR_CHECK(source < sources_.size());
  sources_[source].offsets.Add(after_opening);
}

void DeadlineController::Arrived(std::size_t source, Duration after_opening,
                                 Duration after_beginning, double share) {
  OR_CHECK(source < sources_.size());
  Source& from = sources_[source];
  from.longest_transfer = std::max(from.longest_transfer, after_beginning);
  const Duration usual = std::max({learned_, from.typical_offset, options_.latency});
  const bool far = after_opening - after_beginning > kFarBeyond * usual;
  call_.Add(from.straggler || far ? after_beginning : after_opening, share);
}

Duration DeadlineController::deadline() const {
  return calibrated() ? std::min(unbounded(), options_.bound) : options_.bound;
}

Duration DeadlineController::unbounded() const {
  if (!calibrated()) return Duration(0);
  return chosen_ * kMarginNumerator / kMarginDenominator;
}

bool DeadlineController::calibrated() const { return calls_ >= kCalibrationCalls; }

void DeadlineController::LearnFromCall() {
  const Duration asked = call_.ExceededBy(NegligibleShare());
  if (calibrated() && asked > kFarBeyond * learned_) {
    HoldBack(asked);
  } else {
    Remember(call_, asked, 1);
    if (++calls_since_odd_ >= kOddOneIn * odd_calls_) ForgetOdd();
    if (recent_count_ >= kRecentCalls) ForgetDrop();
  }
  call_.Clear();
}

void DeadlineController::Remember(const LatencyHistogram& data, Duration asked, std::size_t calls) {
  memory_.Fade(kKeptPerCall);
  memory_.Add(data);
  asked_.Fade(kKeptPerCall);
  asked_.Add(asked, static_cast<double>(calls));
  recent_[recent_count_++ % kRecentCalls] = asked;
  ++calls_;
  learned_ = memory_.ExceededBy(NegligibleShare());
}

// Once there are enough odd calls, they count, and the weight of the calls before the first of them
// is reduced, to nothing if the odd calls were consecutive.
void DeadlineController::HoldBack(Duration asked) {
  odd_.Add(call_);
  if (++odd_calls_ < kOddCallsMax) return;
  const double kept = std::min(WeightOf(calls_since_odd_) / asked_.total(), 1.0);
  memory_.Fade(kept);
  asked_.Fade(kept);
  recent_count_ = 0;
  Remember(odd_, asked, odd_calls_);
  ForgetOdd();
}

void DeadlineController::ForgetOdd() {
  odd_.Clear();
  odd_calls_ = 0;
  calls_since_odd_ = 0;
}

// A drop is accepted if earlier calls make it improbable that the last ones are so short by chance.
void DeadlineController::ForgetDrop() {
  const Duration highest = *std::max_element(recent_.begin(), recent_.end());
  if (learned_ <= kOvershootMax * highest) return;
  const double before = asked_.total() - WeightOf(kRecentCalls);
  if (asked_.WeightBeyond(highest) < kLongerBefore * before) return;
  memory_.ForgetBeyond(highest);
  asked_.ForgetBeyond(highest);
  // Leaves the weight of the last calls, so that the next one counts as one more of them.
  const double kept = std::min(WeightOf(kRecentCalls) / asked_.total(), 1.0);
  memory_.Fade(kept);
  asked_.Fade(kept);
  learned_ = memory_.ExceededBy(NegligibleShare());
}

// Seen from a punctual rank, a slow one begins late in every call. Seen from the slow rank, its own
// submission is late and the others are punctual, so it considers no other rank slow. All have to
// judge it alike: its process ends its part of a call without its program only if the others do not
// wait for the program either. So its transfer, which it does not see, is that of the others.
void DeadlineController::FindStragglers() {
  std::size_t known = 0;
  for (Source& source : sources_) {
    if (source.longest_transfer > Duration(0)) source.transfers.Add(source.longest_transfer);
    source.longest_transfer = Duration(0);
    if (source.offsets.count() >= kBeginningsMin)
      source.typical_offset = source.offsets.ExceededIn(kStragglerCalls);
    if (source.offsets.count() > 0) scratch_[known++] = source.typical_offset;
  }
  if (known == 0) return;
  // The median of the others, for every source above it; among an even number the larger middle
  // one: if most ranks are late, waiting for them is right.
  const auto middle = scratch_.begin() + static_cast<std::ptrdiff_t>((known - 1) / 2);
  std::nth_element(scratch_.begin(), middle, scratch_.begin() + static_cast<std::ptrdiff_t>(known));
  const Duration usual = std::max(kStragglerFactor * *middle, options_.latency);
  const Duration transfer = TypicalTransfer();
  for (Source& source : sources_) {
    const Duration own = source.transfers.count() > 0 ? source.transfers.Median() : transfer;
    source.straggler = !options_.waits_for_stragglers && source.typical_offset > usual &&
                       source.typical_offset > own &&
                       GainsWithout(source.typical_offset, known - 1, transfer);
  }
}

// Calls without a source that begins later than the others by `offset` bring more data per second:
// its data is late in all of them.
bool DeadlineController::GainsWithout(Duration offset, std::size_t others,
                                      Duration transfer) const {
  return offset * static_cast<std::int64_t>(others) > computations_.Median() + transfer;
}

// The median of the sources that have transfers.
Duration DeadlineController::TypicalTransfer() {
  std::size_t known = 0;
  for (const Source& source : sources_) {
    if (source.transfers.count() > 0) scratch_[known++] = source.transfers.Median();
  }
  if (known == 0) return Duration(0);
  const auto middle = scratch_.begin() + static_cast<std::ptrdiff_t>(known / 2);
  std::nth_element(scratch_.begin(), middle, scratch_.begin() + static_cast<std::ptrdiff_t>(known));
  return *middle;
}

Duration DeadlineController::Typical::ExceededIn(double share) const {
  std::array<Duration, kTypicalCalls> sorted = values_;
  const std::size_t known = std::min(count_, kTypicalCalls);
  if (known == 0) return Duration(0);
  const auto at =
      sorted.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(known - 1) * (1 - share));
  std::nth_element(sorted.begin(), at, sorted.begin() + known);
  return *at;
}

Duration DeadlineController::Typical::Mean() const {
  const std::size_t known = std::min(count_, kTypicalCalls);
  if (known == 0) return Duration(0);
  return std::accumulate(values_.begin(), values_.begin() + known, Duration(0)) /
         static_cast<int>(known);
}

}  // namespace optireduce
