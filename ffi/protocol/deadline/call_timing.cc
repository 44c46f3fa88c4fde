#include "ffi/protocol/deadline/call_timing.h"

#include <algorithm>
#include <chrono>

namespace optireduce {
namespace {

// Dropped data is lost, so the learned time must not be one that a busy host exceeds by itself.
// Chosen: the 95th percentile alone cuts one call in twenty on a healthy network; with the early
// exit a longer bound costs nothing while the last segments arrive.
constexpr int kHardBoundMargin = 2;
// Chosen: the time for which a host with more work than cores delays a thread.
constexpr Duration kHardBoundMin = std::chrono::milliseconds(5);
// Chosen: the longest pause between two acknowledgements of the sender (kAcknowledgeDelayMax).
constexpr Duration kGraceMin = std::chrono::microseconds(500);

std::size_t StageOf(CallId call, SegmentIndex segment) {
  return (call.sequence.value() + segment.value()) % kStages;
}

}  // namespace

CallTiming::CallTiming(const CollectiveSpec& spec, MemberIndex self, double late_budget,
                       bool goes_on)
    : fixed_{spec.reduce_scatter_deadline, spec.all_gather_deadline},
      learns_(late_budget > 0),
      measures_(spec.members.size()) {
  const std::array<LatePolicy, kStages> policies = {spec.reduce_scatter, spec.all_gather};
  const std::size_t members = spec.members.size();
  for (const Stage stage : kBothStages) {
    const std::size_t i = Index(stage);
    // With deferral, the second stage also counts from the opening of the call.
    const Duration bound = stage == Stage::kReduceScatter ? fixed_[0] : fixed_[0] + fixed_[1];
    if (policies[i] == LatePolicy::kDefer && learns_) {
      deferring_[i].emplace(
          DeadlineOptions{
              .late_budget = late_budget, .bound = bound, .waits_for_stragglers = !goes_on},
          members);
    }
    // An all_gather repairs losses up to the deadline of the user, and ends before by its quorum.
    if (policies[i] == LatePolicy::kDrop && HasReduceScatter(spec)) {
      dropping_[i].emplace(fixed_[i], members, self.index());
    }
  }
}

void CallTiming::ContinueFrom(const CallTiming& earlier) {
  for (std::size_t i = 0; i < kStages; ++i) {
    if (deferring_[i] && earlier.deferring_[i]) deferring_[i]->ContinueFrom(*earlier.deferring_[i]);
  }
}

void CallTiming::Open(Instant now) {
  for (auto& controller : deferring_) {
    if (controller) controller->BeginCall(now);
  }
}

Duration CallTiming::HardBound(Stage stage) const {
  const std::size_t i = Index(stage);
  if (!dropping_[i] || !learns_) return fixed_[i];
  return std::min(std::max(kHardBoundMargin * dropping_[i]->hard_bound(), kHardBoundMin),
                  fixed_[i]);
}

Duration CallTiming::reduce_scatter_deadline() const {
  return deferring_[0] ? deferring_[0]->deadline() : HardBound(Stage::kReduceScatter);
}

Duration CallTiming::call_deadline() const {
  const Duration first = reduce_scatter_deadline();
  if (deferring_[1]) return std::max(first, deferring_[1]->deadline());
  return first + HardBound(Stage::kAllGather);
}

Duration CallTiming::deadline_needed() const {
  const Duration whole = fixed_[0] + fixed_[1];
  Duration needed{};
  if (deferring_[0]) {
    // The bound of this stage is a part of the whole.
    const double parts =
        static_cast<double>(whole.count()) / static_cast<double>(fixed_[0].count());
    needed = std::chrono::round<Duration>(parts * deferring_[0]->unbounded());
  }
  return deferring_[1] ? std::max(needed, deferring_[1]->unbounded()) : needed;
}

void CallTiming::Began(Stage stage, MemberIndex source, Duration after_opening) {
  if (auto& controller = deferring_[Index(stage)]) controller->Began(source.index(), after_opening);
}

void CallTiming::Arrived(Stage stage, MemberIndex source, Duration after_opening,
                         Duration after_beginning, double share) {
  if (auto& controller = deferring_[Index(stage)]) {
    controller->Arrived(source.index(), after_opening, after_beginning, share);
  }
}

bool CallTiming::calibrating() const {
  return std::ranges::any_of(
      dropping_, [](const auto& controller) { return controller && !controller->calibrated(); });
}

Duration CallTiming::grace(Stage stage) const {
  return std::max(dropping_[Index(stage)]->grace(), kGraceMin);
}

void CallTiming::Ended(Stage stage, const StageEnd& end) {
  if (auto& controller = dropping_[Index(stage)]) {
    samples_[Index(stage)] = EncodeDuration(controller->EndStage(end));
  }
}

std::uint16_t CallTiming::SampleFor(CallId call, SegmentIndex segment) const {
  return samples_[StageOf(call, segment)];
}

void CallTiming::HandleSample(MemberIndex from, CallId call, SegmentIndex segment,
                              std::uint16_t code) {
  auto& controller = dropping_[StageOf(call, segment)];
  if (controller) controller->Told(from.index(), DecodeDuration(code));
}

}  // namespace optireduce
