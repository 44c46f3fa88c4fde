#include "ffi/runtime/slow_rank.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace optireduce {
namespace {

// Shorter waits are nobody's fault.
// Chosen: several times what a scheduler with more threads than cores makes a rank late by.
constexpr Duration kBehindMin = std::chrono::milliseconds(20);

// A call waited for a rank when without it the call would have taken at most half as long.
constexpr int kSlowdownMin = 2;

// Waits matter when they are at least this share of the time that the calls are apart.
// Chosen: below a twentieth of a step there is more to gain elsewhere.
constexpr int kMatteringShare = 20;

// Collectives that are watched; further ones are not.
// Chosen: more than a program has buckets; bounds the memory to about 0.6 MB.
constexpr std::size_t kCollectivesMax = 1024;

Duration Median(std::vector<Duration>& values) {
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::optional<SlowRankNews> SlowRankWatch::Add(std::string_view collective, const CallStats& stats,
                                               Instant end) {
  auto found = histories_.find(collective);
  if (found == histories_.end()) {
    if (histories_.size() >= kCollectivesMax) return std::nullopt;
    found = histories_.emplace(collective, History{}).first;
  }
  History& history = found->second;
  const bool waited =
      stats.absent || (stats.behind >= kBehindMin && kSlowdownMin * stats.behind >= stats.elapsed);
  Call& call = history.calls[history.added++ % kSlowRankWindow];
  call = {.waited_for = waited ? std::optional(stats.slowest) : std::nullopt,
          .absent = stats.absent,
          .behind = stats.behind,
          .elapsed = stats.elapsed,
          .end = end};

  for (const auto& [rank, shown_by] : slow_) {
    if (shown_by != collective) continue;
    SlowRankNews news = Judge(history, rank);
    if (news.waited > kRecoveredCalls) continue;
    news.recovered = true;
    news.collective = collective;
    slow_.erase(rank);
    return news;
  }
  if (!waited) return std::nullopt;
  SlowRankNews news = Judge(history, stats.slowest);
  if (news.waited < kSlowRankCalls || !Matters(history, stats.slowest)) return std::nullopt;
  news.collective = collective;
  const auto [known, is_news] = slow_.try_emplace(stats.slowest, collective);
  if (is_news) return news;
  // Known from a collective that may not be called any more: this one shows the recovery as well.
  known->second = collective;
  return std::nullopt;
}

void SlowRankWatch::Forget(Rank rank) {
  slow_.erase(rank);
  for (auto& [collective, history] : histories_) {
    for (Call& call : history.calls) {
      if (call.waited_for == rank) call.waited_for.reset();
    }
  }
}

SlowRankNews SlowRankWatch::Judge(const History& history, Rank rank) {
  SlowRankNews news;
  news.rank = rank;
  news.calls = history.size();
  std::vector<Duration> behind;
  std::vector<Duration> elapsed;
  for (std::size_t i = 0; i < history.size(); ++i) {
    const Call& call = history.calls[i];
    if (call.waited_for != rank) continue;
    ++news.waited;
    news.absent += call.absent;
    behind.push_back(call.behind);
    elapsed.push_back(call.elapsed);
  }
  news.behind = Median(behind);
  news.elapsed = Median(elapsed);
  return news;
}

bool SlowRankWatch::Matters(const History& history, Rank rank) {
  Duration waited{};
  Instant begin = kNever;
  Instant end{};
  std::size_t absent = 0;
  for (std::size_t i = 0; i < history.size(); ++i) {
    const Call& call = history.calls[i];
    begin = std::min(begin, call.end - call.elapsed);
    end = std::max(end, call.end);
    if (call.waited_for != rank) continue;
    waited += call.behind;
    absent += call.absent;
  }
  // Data that is missing is missed, however short the deadline is.
  return absent >= kSlowRankCalls || kMatteringShare * waited >= end - begin;
}

}  // namespace optireduce
