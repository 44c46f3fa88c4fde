#include "ffi/runtime/slow_rank.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace optireduce {
namespace {

// Shorter waits do not count.
// Chosen: several times the delay by a scheduler with more threads than cores.
constexpr Duration kBehindMin = std::chrono::milliseconds(20);

// A call waited for a rank if it would have taken at most half as long without that rank.
constexpr int kSlowdownMin = 2;

// Waits matter from this share of the time between calls, as a divisor.
// Chosen: below a twentieth of a step there is more to gain elsewhere.
constexpr int kSignificantShare = 20;

Duration Median(std::vector<Duration>& values) {
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::optional<SlowRankEvent> SlowRankDetector::Add(std::string_view collective,
                                                   const CallStats& stats, Instant end) {
  // A call that waited for no rank is no evidence.
  if (stats.passed) return std::nullopt;
  History* const known = histories_.FindOrAdd(collective);
  if (known == nullptr) return std::nullopt;
  History& history = *known;
  const bool waited = stats.behind >= kBehindMin && kSlowdownMin * stats.behind >= stats.elapsed;
  Call& call = history.calls[history.added++ % kSlowRankWindow];
  call = {.waited_for = waited ? std::optional(stats.slowest) : std::nullopt,
          .absent = stats.absent,
          .behind = stats.behind,
          .elapsed = stats.elapsed,
          .end = end};
  if (auto event = FindRecovered(collective, history, end)) return event;
  if (waited) {
    if (auto event = NameIfSlow(collective, history, stats.slowest, end)) return event;
  }
  for (const Rank rank : stats.absent) {
    if (auto event = NameIfSlow(collective, history, rank, end)) return event;
  }
  return std::nullopt;
}

std::optional<SlowRankEvent> SlowRankDetector::FindRecovered(std::string_view collective,
                                                             const History& history, Instant now) {
  for (auto& [rank, slow] : slow_) {
    if (slow.shown_by != collective) continue;
    SlowRankEvent event = Summarize(history, rank);
    if (event.waited > kRecoveredCalls) slow.waited_at = now;
    if (now - slow.waited_at < kRecoveredAfter) continue;
    event.recovered = true;
    event.collective = collective;
    Backoff& backoff = backoffs_[rank];
    const Duration longer = std::min(2 * backoff.pause, kSlowRankPauseMax);
    // A recovery long ago does not lengthen this pause.
    backoff.pause =
        now - backoff.until > longer ? kSlowRankPause : std::max(longer, kSlowRankPause);
    backoff.until = now + backoff.pause;
    slow_.erase(rank);
    return event;
  }
  return std::nullopt;
}

std::optional<SlowRankEvent> SlowRankDetector::NameIfSlow(std::string_view collective,
                                                          const History& history, Rank rank,
                                                          Instant now) {
  SlowRankEvent event = Summarize(history, rank);
  if (event.waited < kSlowRankCalls || !IsSignificant(history, rank)) return std::nullopt;
  const auto backoff = backoffs_.find(rank);
  if (backoff != backoffs_.end() && now < backoff->second.until) return std::nullopt;
  event.collective = collective;
  const auto [known, is_new] = slow_.try_emplace(rank);
  // Reported for a collective that the program may have stopped calling: from here on this
  // collective shows the recovery.
  known->second = {.shown_by = std::string(collective), .waited_at = now};
  if (is_new) return event;
  return std::nullopt;
}

void SlowRankDetector::Forget(Rank rank) {
  slow_.erase(rank);
  backoffs_.erase(rank);
  histories_.ForEach([rank](History& history) {
    for (Call& call : history.calls) {
      if (call.waited_for == rank) call.waited_for.reset();
      std::erase(call.absent, rank);
    }
  });
}

bool SlowRankDetector::Absent(const Call& call, Rank rank) {
  return std::ranges::find(call.absent, rank) != call.absent.end();
}

SlowRankEvent SlowRankDetector::Summarize(const History& history, Rank rank) {
  SlowRankEvent event;
  event.rank = rank;
  event.calls = history.size();
  std::vector<Duration> behind;
  std::vector<Duration> elapsed;
  for (std::size_t i = 0; i < history.size(); ++i) {
    const Call& call = history.calls[i];
    if (!Waited(call, rank)) continue;
    ++event.waited;
    event.absent += Absent(call, rank);
    behind.push_back(call.behind);
    elapsed.push_back(call.elapsed);
  }
  event.behind = Median(behind);
  event.elapsed = Median(elapsed);
  return event;
}

bool SlowRankDetector::IsSignificant(const History& history, Rank rank) {
  Duration waited{};
  Instant begin = kNever;
  Instant end{};
  std::size_t absent = 0;
  for (std::size_t i = 0; i < history.size(); ++i) {
    const Call& call = history.calls[i];
    begin = std::min(begin, call.end - call.elapsed);
    end = std::max(end, call.end);
    if (!Waited(call, rank)) continue;
    waited += call.behind;
    absent += Absent(call, rank);
  }
  // Missing data matters with any deadline.
  return absent >= kSlowRankCalls || kSignificantShare * waited >= end - begin;
}

}  // namespace optireduce
