#include "ffi/runtime/lane.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <iterator>
#include <span>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/net/clock.h"

namespace optireduce {
namespace {

// Batches sent before the lane receives again: acknowledgements must not wait behind a bucket, and
// the socket's receive buffer must not fill up meanwhile.
// Chosen: 4 batches of 64 kB leave in well under a millisecond even on a slow core.
constexpr int kBatchesPerTurn = 4;

// Time for which a lane with open calls polls before it sleeps; each poll yields its core to any
// other thread.
// Chosen: about the time to wake a sleeping core, so that polling costs no more than that.
// Calls of 4 bytes on two cores without polling, with 20 us and with 60 us: 112, 40, 39 us with 2
// ranks, 310, 290, 280 us with 4; the CPU time is the same.
constexpr Duration kPollTime = std::chrono::microseconds(50);

// A poll without a datagram takes 1.5 us of an idle core, so a lane has a budget of polls. In a
// call of 25 MiB over links of 1 Gbit/s hardly any poll finds a datagram, and unlimited polls took
// a quarter of the processor time; if processes share a core, each poll yields it, and polls are
// few.
// Chosen: a call adds 0.4 ms, more than a small call needs; a successful poll adds half of
// kPollTime; and a sleep adds one poll, since the pattern may have changed.
constexpr int kPollsPerCall = 256;
constexpr int kPollsPerFind = 16;
constexpr int kPollsPerSleep = 1;

// Least wait of a lane after the port has refused a batch, so that it does not spin.
// Chosen: a port that accepts batches again ends the wait sooner; 1 ms is 125 kB at 1 Gbit/s.
constexpr Duration kRefusedPause = std::chrono::milliseconds(1);

// Longest time for which a closing lane delivers the data that peers still need, and the leave
// message.
// Chosen: several round trips and retransmissions of any supported network; short for a waiting
// user.
constexpr Duration kFinishDeliveryMax = std::chrono::seconds(1);

// Age of a call at which the snapshot includes the ranks that it waits for.
// Chosen: longer than most calls, so that it costs little in normal operation; shorter than the
// 500 ms after which a waiting lane has its next turn.
constexpr Duration kLongWait = std::chrono::milliseconds(200);

// Longest wait for the timing that a lane has learned.
// Chosen: a lane answers between two turns, within milliseconds; without an answer the deadlines
// are learned anew.
constexpr Duration kTimingsWait = std::chrono::seconds(1);

}  // namespace

Lane::Lane(std::unique_ptr<DatagramPort> port, std::unique_ptr<Endpoint> endpoint,
           std::size_t datagram_bytes_max, LaneListener listener)
    : port_(std::move(port)),
      endpoint_(std::move(endpoint)),
      listener_(std::move(listener)),
      live_(endpoint_->live()),
      buffer_(port_->batch_max() > 1 ? kUdpPayloadBytesMax : datagram_bytes_max),
      thread_([this] { Run(); }) {}

Lane::~Lane() { Close(Status(StatusCode::kCancelled, "the communicator was destroyed")); }

void Lane::Submit(Submission submission, CallDoneFunction done) {
  std::unique_lock lock(mutex_);
  if (closed_) {
    const Status closed = *closed_;
    lock.unlock();
    return done(closed, CallStats{});
  }
  queue_.push_back({.submission = std::move(submission), .done = std::move(done), .run = nullptr});
  lock.unlock();
  port_->Wake();
}

void Lane::Post(std::function<void()> request) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    queue_.push_back({.submission = {}, .done = nullptr, .run = std::move(request)});
  }
  port_->Wake();
}

void Lane::Cancel(const Status& why) {
  // Calls that were submitted before are open by then, so the peers are told of their end.
  Post([this, why] {
    endpoint_->Cancel(ClockNow(), why);
    DeliverCompletions();
  });
}

void Lane::GiveUp(Submission call, const Status& why) {
  // A closing lane announces that it leaves, which covers the call.
  Post([this, call = std::move(call), why]() mutable {
    endpoint_->GiveUp(ClockNow(), std::move(call), why);
  });
}

void Lane::Remove(Rank rank, const std::string& why) {
  Post([this, rank, why] { endpoint_->Remove(ClockNow(), rank, why); });
}

void Lane::ProbePaths(std::vector<std::size_t> lengths) {
  Post([this, lengths = std::move(lengths)] {
    endpoint_->ProbePaths(lengths);
    unproven_ = endpoint_->UnprovenPaths();
  });
}

void Lane::StartClosing(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (!closed_) closed_ = why;
  }
  port_->Wake();
}

void Lane::Close(const Status& why) {
  StartClosing(why);
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

LaneSnapshot Lane::snapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

std::optional<LaneReport> Lane::Examine(Instant until) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return std::nullopt;
    report_.reset();  // the late answer to an earlier request
  }
  Post([this] { Report(); });
  std::unique_lock lock(mutex_);
  reported_.wait_for(lock, until - ClockNow(), [this] { return report_.has_value(); });
  return std::exchange(report_, std::nullopt);
}

void Lane::Report() {
  LaneReport report{.peers = endpoint_->PeerReports(), .waiting = WaitingCalls(kNever)};
  const std::lock_guard lock(mutex_);
  report_ = std::move(report);
  reported_.notify_one();
}

std::optional<Timings> Lane::FindTimings() {
  // It outlives the wait, so that a lane that closes meanwhile makes no exception.
  const auto found = std::make_shared<std::promise<Timings>>();
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return std::nullopt;
  }
  std::future<Timings> answer = found->get_future();
  Post([this, found] { found->set_value(endpoint_->FindTimings()); });
  if (answer.wait_for(kTimingsWait) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

void Lane::ContinueFrom(Timings earlier) {
  Post([this, earlier = std::move(earlier)]() mutable {
    endpoint_->ContinueFrom(std::move(earlier));
  });
}

std::vector<LateData> Lane::TakeLateData() {
  const std::lock_guard lock(mutex_);
  return std::exchange(late_data_, {});
}

void Lane::Run() {
  // Programs that show the load of each thread show this name. It is the longest for Linux.
  pthread_setname_np(pthread_self(), "optireduce-lane");
  Status why;
  try {
    Loop();
    why = CloseReason();
    FinishDelivery(why);
  } catch (const BrokenInvariant& broken) {
    why = Status(StatusCode::kInternal,
                 std::string("this lane detected an internal error and stopped, rather than return "
                             "wrong sums: ") +
                     broken.what());
  } catch (const std::exception& unexpected) {
    // Memory may have run out, for example. The process continues; its calls must end.
    why = Status(StatusCode::kInternal, std::string("this lane stopped: ") + unexpected.what());
  }
  FailAll(why);
}

void Lane::Loop() {
  Instant quiet_since = kNever;  // kNever: the last turn was busy
  while (HandleRequests()) {
    const bool received = ReceiveSome();
    if (const Instant now = ClockNow(); now >= endpoint_->PollTimeout()) {
      endpoint_->HandleTimeout(now);
    }
    DeliverCompletions();  // A finished call need not wait for the sends.
    const bool sent = SendSome();
    DeliverCompletions();
    if (received || sent) {
      if (quiet_since != kNever) polls_left_ = std::min(polls_left_ + kPollsPerFind, kPollsPerCall);
      quiet_since = kNever;
      continue;
    }
    if (MayPoll(quiet_since)) {
      --polls_left_;
      std::this_thread::yield();
      continue;
    }
    quiet_since = kNever;
    polls_left_ = std::min(polls_left_ + kPollsPerSleep, kPollsPerCall);
    Publish();
    port_->Wait(NextTurn());
  }
}

bool Lane::MayPoll(Instant& quiet_since) const {
  if (calls_.empty() || polls_left_ == 0) return false;
  const Instant now = ClockNow();
  quiet_since = std::min(quiet_since, now);
  return now < quiet_since + kPollTime;
}

Instant Lane::NextTurn() const {
  const Instant due = endpoint_->PollTimeout();
  // Sends may be due while the port accepts nothing; Wait() returns when it accepts again.
  return refused_ ? std::max(due, ClockNow() + kRefusedPause) : due;
}

bool Lane::HandleRequests() {
  bool closing = false;
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(queue_);
    closing = closing_;
  }
  // The others stay in `taken_`, where FailAll() finds them.
  for (Request& request : taken_) HandleRequest(std::exchange(request, {}));
  taken_.clear();
  return !closing;
}

void Lane::HandleRequest(Request request) {
  if (request.run) return request.run();
  polls_left_ = kPollsPerCall;
  const std::uint64_t token = next_token_++;
  request.submission.token = token;
  const auto call = calls_
                        .emplace(token, Call{.done = std::move(request.done),
                                             .record = request.submission.record})
                        .first;
  const Status status = endpoint_->Submit(ClockNow(), std::move(request.submission));
  if (status.ok()) return;
  call->second.done(status, CallStats{});
  calls_.erase(call);
}

bool Lane::ReceiveSome() {
  // One reading of the clock for all datagrams: they arrived together.
  std::optional<Instant> now;
  const std::size_t received = port_->Receive([this, &now](std::span<const std::byte> datagram) {
    if (!now) now = ClockNow();
    endpoint_->HandleDatagram(*now, datagram);
  });
  return received > 0;
}

// True if more may be sent immediately.
bool Lane::SendSome() {
  // After a refusal the port's Wait() returns when it accepts again.
  if (refused_) {
    const std::span<const std::byte> bytes = refused_bytes_;
    if (!port_->Send(refused_->to, {&bytes, 1}, refused_->datagram_bytes)) return false;
    refused_.reset();
  }
  for (int i = 0; i < kBatchesPerTurn; ++i) {
    const auto next = endpoint_->PollTransmit(ClockNow(), buffer_, port_->batch_max());
    if (!next) return false;
    if (!port_->Send(next->to, next->pieces, next->datagram_bytes)) {
      refused_ = next;
      Join(next->pieces, refused_bytes_);
      return false;
    }
  }
  return true;
}

void Lane::DeliverCompletions() {
  bool any = false;
  while (const std::optional<CallDone> event = endpoint_->PollEvent()) {
    const auto call = calls_.find(event->token);
    OR_CHECK(call != calls_.end());
    const CallDoneFunction done = std::move(call->second.done);
    calls_.erase(call);
    // Before `done`: the counters must include the call when it ends.
    if (!any) Publish();
    any = true;
    done(event->status, event->stats);
  }
}

void Lane::FinishDelivery(const Status& why) {
  const Instant end = ClockNow() + kFinishDeliveryMax;
  endpoint_->Leave(ClockNow(), why);
  DeliverCompletions();
  for (Instant now = ClockNow(); now < end && !endpoint_->finished(); now = ClockNow()) {
    const bool received = ReceiveSome();
    if (now >= endpoint_->PollTimeout()) endpoint_->HandleTimeout(now);
    if (SendSome() || received) continue;
    port_->Wait(std::min(NextTurn(), end));
  }
  Publish();
  const std::lock_guard lock(mutex_);
  late_data_ = endpoint_->FindLateData();
}

void Lane::TellListener() {
  while (std::optional<LoneCall> lone = endpoint_->PollLoneCall()) {
    listener_.lone_call(std::move(*lone));
  }
  std::vector<Rank> live = endpoint_->live();
  if (live == live_) return;
  std::string path;
  for (const Rank rank : live_) {
    const bool removed = std::ranges::find(live, rank) == live.end();
    if (removed && path.empty()) path = endpoint_->DescribeNarrowPath(rank);
  }
  live_ = std::move(live);
  listener_.ranks_left(live_, path);
}

void Lane::Publish() {
  TellListener();
  if (unproven_ && !unproven_->empty()) unproven_ = endpoint_->UnprovenPaths();
  std::map<std::uint64_t, WaitingCall> waiting = WaitingCalls(ClockNow() - kLongWait);
  const std::lock_guard lock(mutex_);
  snapshot_ = {.counters = endpoint_->counters(),
               .socket_drops = port_->socket_drops(),
               .send_errors = port_->send_errors(),
               .memory_bytes = endpoint_->memory_bytes(),
               .silent = endpoint_->silent(),
               .unreached = endpoint_->unreached(),
               .unproven = unproven_,
               .waiting = std::move(waiting)};
}

std::map<std::uint64_t, WaitingCall> Lane::WaitingCalls(Instant before) const {
  std::map<std::uint64_t, WaitingCall> waiting;
  if (calls_.empty()) return waiting;
  for (WaitingCall& call : endpoint_->WaitingCalls(before)) {
    const auto known = calls_.find(call.token);
    if (known != calls_.end()) waiting.emplace(known->second.record, std::move(call));
  }
  return waiting;
}

Status Lane::CloseReason() const {
  const std::lock_guard lock(mutex_);
  OR_CHECK(closed_.has_value());
  return *closed_;
}

void Lane::FailAll(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = why;
    std::ranges::move(queue_, std::back_inserter(taken_));
    queue_.clear();
  }
  for (auto& [token, call] : calls_) call.done(why, CallStats{});
  calls_.clear();
  for (Request& request : taken_) {
    if (request.done) request.done(why, CallStats{});
  }
  taken_.clear();
}

}  // namespace optireduce
