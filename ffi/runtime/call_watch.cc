#include "ffi/runtime/call_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "ffi/net/clock.h"

namespace optireduce {
namespace {

// Pending events.
// Chosen: events are rare; more of them are of no use without a reader for this long.
constexpr std::size_t kNewsMax = 64;

Duration UnixTime() {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch());
}

}  // namespace

CallWatch::CallWatch(const CallWatchOptions& options)
    : options_(options), short_deadline_(options.deadline_max) {
  for (std::uint16_t rank = 0; rank < options.world_size; ++rank) live_.emplace_back(rank);
}

std::uint64_t CallWatch::Begin(const Submission& submission) {
  const Duration unix_time = UnixTime();
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = recorder_.Begin(submission, ClockNow(), unix_time);
  // A thread that is not idle wakes before this call can have stalled.
  if (idle_) changed_.notify_one();
  return number;
}

void CallWatch::End(std::uint64_t number, const Status& status, const CallStats& stats) {
  const std::lock_guard lock(mutex_);
  const Instant now = ClockNow();
  const CallRecord* const call = recorder_.End(number, now, status, stats);
  if (call == nullptr) return;
  if (!status.ok()) return TellIfUnreachable(*call, status);
  failing_ = false;
  if (const auto news = slow_rank_.Add(call->collective, stats, now)) Tell(*news);
  if (const auto news = short_deadline_.Add(call->collective, stats)) Tell(*news);
}

void CallWatch::SetLive(const std::vector<Rank>& live) {
  const std::lock_guard lock(mutex_);
  RemovalNews news;
  for (const Rank rank : live_) {
    if (std::ranges::find(live, rank) == live.end()) news.ranks.push_back(rank);
  }
  // The removal was already reported by another lane.
  if (news.ranks.empty()) return;
  std::erase_if(live_, [&](Rank rank) { return std::ranges::find(live, rank) == live.end(); });
  for (const Rank rank : news.ranks) slow_rank_.Forget(rank);
  news.live = live_.size();
  Tell(std::move(news));
}

void CallWatch::TellDevices(DevicesNews news) {
  const std::lock_guard lock(mutex_);
  Tell(std::move(news));
}

std::size_t CallWatch::live() const {
  const std::lock_guard lock(mutex_);
  return live_.size();
}

std::vector<CallRecord> CallWatch::Records() const {
  const std::lock_guard lock(mutex_);
  std::vector<CallRecord> records = recorder_.Records();
  const Instant now = ClockNow();
  for (CallRecord& record : records) {
    if (record.state == CallRecord::State::kUnderWay) record.elapsed = now - record.started;
  }
  return records;
}

std::optional<WatchNews> CallWatch::Wait() {
  std::unique_lock lock(mutex_);
  while (news_.empty()) {
    if (closed_) return std::nullopt;
    WaitForStall(lock);
  }
  WatchNews news = std::move(news_.front());
  news_.pop_front();
  return news;
}

void CallWatch::WaitForStall(std::unique_lock<std::mutex>& lock) {
  const bool timed = options_.stall_timeout > Duration::zero();
  const CallRecord* const oldest = timed ? recorder_.OldestUntold() : nullptr;
  if (oldest == nullptr) {
    idle_ = timed;
    changed_.wait(lock);
    idle_ = false;
    return;
  }
  const Duration left = SaturatingAdd(oldest->started, options_.stall_timeout) - ClockNow();
  if (left > Duration::zero()) {
    changed_.wait_for(lock, left);
    return;
  }
  TellStall(*oldest);
}

void CallWatch::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void CallWatch::Tell(WatchNews news) {
  if (news_.size() >= kNewsMax) return;
  news_.push_back(std::move(news));
  changed_.notify_one();
}

void CallWatch::TellStall(const CallRecord& call) {
  StallNews news{.call = call, .others = recorder_.under_way()};
  if (call.state == CallRecord::State::kUnderWay) {
    news.call.elapsed = ClockNow() - call.started;
    --news.others;
  }
  recorder_.TellAll();
  Tell(std::move(news));
}

void CallWatch::TellIfUnreachable(const CallRecord& call, const Status& status) {
  if (options_.stall_timeout == Duration::zero() || call.told || failing_) return;
  // Any of these: the first rank to give up a dead peer announces the failure to the others.
  const bool unreachable = status.code() == StatusCode::kUnavailable ||
                           status.code() == StatusCode::kAborted ||
                           status.code() == StatusCode::kDeadlineExceeded;
  if (!unreachable || call.elapsed < options_.unavailable_wait) return;
  failing_ = true;
  TellStall(call);
}

}  // namespace optireduce
