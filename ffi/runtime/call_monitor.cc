#include "ffi/runtime/call_monitor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "ffi/net/clock.h"

namespace optireduce {
namespace {

// Pending events.
// Chosen: events are rare; more of them are of no use without a reader for this long.
constexpr std::size_t kEventsMax = 64;

Duration UnixTime() {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch());
}

}  // namespace

CallMonitor::CallMonitor(const CommunicatorOptions& options)
    : stall_timeout_(options.stall_timeout),
      // A silent peer is given up after its timeout, measured from its last sign of life; so half
      // of it.
      unavailable_wait_(options.peer_timeout / 2),
      short_deadline_(options.deadline_max),
      late_share_(options.catches_up()) {
  for (std::uint16_t rank = 0; rank < options.world_size; ++rank) live_.emplace_back(rank);
}

std::uint64_t CallMonitor::Begin(const Submission& submission) {
  const Duration unix_time = UnixTime();
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = recorder_.Begin(submission, ClockNow(), unix_time);
  // A thread that is not idle wakes before this call can have stalled.
  if (idle_) changed_.notify_one();
  return number;
}

void CallMonitor::End(std::uint64_t number, const Status& status, const CallStats& stats) {
  const std::lock_guard lock(mutex_);
  const Instant now = ClockNow();
  const CallRecord* const call = recorder_.End(number, now, status, stats);
  if (call == nullptr) return;
  if (!status.ok()) return TellIfUnreachable(*call, status);
  failing_ = false;
  totals_.Add(*call);
  // A member that is absent from a call with spare ones may have been the last by microseconds.
  if (!call->spares) {
    if (const auto event = slow_rank_.Add(call->collective, stats, now)) Push(*event);
  }
  if (const auto event = short_deadline_.Add(call->collective, stats)) Push(*event);
  if (!call->defers) return;
  if (const auto event = late_share_.Add(call->collective, stats)) Push(*event);
}

void CallMonitor::SetLive(const std::vector<Rank>& live, const std::string& path) {
  const std::lock_guard lock(mutex_);
  RemovalEvent event;
  for (const Rank rank : live_) {
    if (std::ranges::find(live, rank) == live.end()) event.ranks.push_back(rank);
  }
  // The removal was already reported by another lane.
  if (event.ranks.empty()) return;
  std::erase_if(live_, [&](Rank rank) { return std::ranges::find(live, rank) == live.end(); });
  for (const Rank rank : event.ranks) slow_rank_.Forget(rank);
  event.live = live_.size();
  event.path = path;
  Push(std::move(event));
}

void CallMonitor::Tell(MonitorEvent event) {
  const std::lock_guard lock(mutex_);
  Push(std::move(event));
}

std::vector<Rank> CallMonitor::members() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

std::vector<CallRecord> CallMonitor::Records() const {
  const std::lock_guard lock(mutex_);
  std::vector<CallRecord> records = recorder_.Records();
  SetElapsed(records);
  return records;
}

std::vector<CallRecord> CallMonitor::OpenRecords() const {
  const std::lock_guard lock(mutex_);
  std::vector<CallRecord> records = recorder_.OpenRecords();
  SetElapsed(records);
  return records;
}

std::optional<CallRecord> CallMonitor::LastEnded() const {
  const std::lock_guard lock(mutex_);
  return recorder_.LastEnded();
}

void CallMonitor::SetElapsed(std::vector<CallRecord>& records) {
  const Instant now = ClockNow();
  for (CallRecord& record : records) {
    if (record.state == CallRecord::State::kUnderWay) record.elapsed = now - record.started;
  }
}

std::vector<std::pair<std::string, CallTotals>> CallMonitor::Totals() const {
  const std::lock_guard lock(mutex_);
  return totals_.Values();
}

std::optional<MonitorEvent> CallMonitor::Wait() {
  std::unique_lock lock(mutex_);
  while (events_.empty()) {
    if (closed_) return std::nullopt;
    WaitForStall(lock);
  }
  MonitorEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void CallMonitor::WaitForStall(std::unique_lock<std::mutex>& lock) {
  const bool timed = stall_timeout_ > Duration::zero();
  const CallRecord* const oldest = timed ? recorder_.OldestUntold() : nullptr;
  if (oldest == nullptr) {
    idle_ = timed;
    changed_.wait(lock);
    idle_ = false;
    return;
  }
  const Duration left = SaturatingAdd(oldest->started, stall_timeout_) - ClockNow();
  if (left > Duration::zero()) {
    changed_.wait_for(lock, left);
    return;
  }
  ReportStall(*oldest);
}

std::uint64_t CallMonitor::events_dropped() const {
  const std::lock_guard lock(mutex_);
  return events_dropped_;
}

void CallMonitor::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void CallMonitor::Push(MonitorEvent event) {
  if (events_.size() >= kEventsMax) {
    ++events_dropped_;
    return;
  }
  events_.push_back(std::move(event));
  changed_.notify_one();
}

void CallMonitor::ReportStall(const CallRecord& call) {
  StallEvent event{.call = call, .others = recorder_.under_way()};
  if (call.state == CallRecord::State::kUnderWay) {
    event.call.elapsed = ClockNow() - call.started;
    --event.others;
  }
  recorder_.TellAll();
  Push(std::move(event));
}

void CallMonitor::TellIfUnreachable(const CallRecord& call, const Status& status) {
  if (stall_timeout_ == Duration::zero() || call.told || failing_) return;
  // Any of these: the first rank to give up a dead peer announces the failure to the others.
  const bool unreachable = status.code() == StatusCode::kUnavailable ||
                           status.code() == StatusCode::kAborted ||
                           status.code() == StatusCode::kDeadlineExceeded;
  if (!unreachable || call.elapsed < unavailable_wait_) return;
  failing_ = true;
  ReportStall(call);
}

}  // namespace optireduce
