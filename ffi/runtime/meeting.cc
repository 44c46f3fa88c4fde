#include "ffi/runtime/meeting.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/base/quoted.h"
#include "ffi/codec/reduce.h"
#include "ffi/net/clock.h"
#include "ffi/protocol/call/late_policy.h"

namespace optireduce {
namespace {

// Collectives that one process can name.
// Chosen: far more call sites than a program has; detects a new name for every step.
constexpr std::size_t kCollectivesMax = 1 << 16;

std::string Listed(const std::vector<std::uint32_t>& ranks) {
  std::string list;
  for (const std::uint32_t rank : ranks) {
    if (!list.empty()) list += ", ";
    list += std::to_string(rank);
  }
  return list;
}

std::string Described(const DeviceCall& call, Sequence sequence) {
  return "rank " + std::to_string(call.rank) + " called " + call.spec.description + " (call " +
         std::to_string(sequence.value()) + ")";
}

Status TooManyNames(const std::string& name) {
  return Status(StatusCode::kResourceExhausted,
                "this process has used " + std::to_string(kCollectivesMax) +
                    " names of collectives, the last one " + Quoted(name) +
                    ". Give a call the same name= in every step; number the steps with step= "
                    "instead.");
}

bool SameLeaves(const DeviceCall& a, const DeviceCall& b) {
  return std::ranges::equal(a.leaves, b.leaves, {}, &Leaf::elements, &Leaf::elements);
}

bool SameCollective(const DeviceCall& a, const DeviceCall& b) {
  return a.spec.fingerprint == b.spec.fingerprint && a.spec.element_type == b.spec.element_type &&
         a.spec.reduce_scatter == b.spec.reduce_scatter && a.spec.all_gather == b.spec.all_gather &&
         a.spec.members == b.spec.members && a.local_ranks == b.local_ranks &&
         a.groups == b.groups && a.drain == b.drain && SameLeaves(a, b);
}

void CopyLeaves(const DeviceCall& from, const DeviceCall& to) {
  const std::size_t element_bytes = SizeOf(from.spec.element_type);
  for (std::size_t i = 0; i < from.leaves.size(); ++i) {
    const std::size_t bytes = static_cast<std::size_t>(from.leaves[i].elements) * element_bytes;
    if (bytes > 0) std::memcpy(to.leaves[i].data, from.leaves[i].data, bytes);
  }
}

}  // namespace

// One call from the first device's start to the last device's completion.
struct Meeting::Gathering {
  Key key;
  Sequence sequence;
  Instant begun;
  Instant stalls_at = kNever;       // time of its report
  Instant deadline = kNever;        // for the start of all devices
  std::vector<DeviceCall> calls;    // in the order of their start; sorted by rank once complete
  std::uint64_t cancellations = 0;  // their number before the last device started
  Instant complete_at;
  std::atomic<std::size_t> copies_left = 0;

  Instant WakesAt() const { return std::min(stalls_at, deadline); }
  std::vector<std::uint32_t> Started() const {
    std::vector<std::uint32_t> ranks;
    for (const DeviceCall& call : calls) ranks.push_back(call.rank);
    std::ranges::sort(ranks);
    return ranks;
  }
  std::vector<std::uint32_t> Missing() const {
    std::vector<std::uint32_t> ranks;
    std::ranges::set_difference(calls.front().local_ranks, Started(), std::back_inserter(ranks));
    return ranks;
  }
};

std::shared_ptr<Meeting> Meeting::Create(std::shared_ptr<CompletionPool> pool,
                                         MeetingOptions options) {
  return std::shared_ptr<Meeting>(new Meeting(std::move(pool), std::move(options)));
}

Meeting::Meeting(std::shared_ptr<CompletionPool> pool, MeetingOptions options)
    : pool_(std::move(pool)), options_(std::move(options)) {}

Meeting::~Meeting() { Close(Status(StatusCode::kCancelled, "the communicator was destroyed")); }

void Meeting::Start(DeviceCall call) {
  std::shared_ptr<Gathering> gathering;
  {
    const std::lock_guard lock(mutex_);
    const Key key{call.spec.name, call.group};
    // A drain of such a collective never has data in flight, and its leaves are zeros.
    if (!closed_ && call.drain && !RetainsLateData(call.spec))
      return Answer(std::move(call), Status());
    Result<Sequence> sequence = Admit(key, call);
    if (!sequence.ok()) return Reject(std::move(call), sequence.status());
    // Before the call can end and a drain can follow.
    if (!call.drain) called_.Note(call.key, call.spec);
    gathering = Join(key, collectives_[key], std::move(call), sequence.value());
  }
  if (!gathering) return;
  // With one device there is nothing to add, and the call can be submitted immediately.
  if (gathering->calls.size() == 1) return HandToNetwork(gathering);
  pool_->Run([self = shared_from_this(), gathering] { self->Reduce(gathering); });
}

Status Meeting::CheckDrain(const DeviceCall& call) const {
  const std::lock_guard lock(mutex_);
  return called_.Check(call.key, call.spec, call.drains_if_any);
}

Sequence Meeting::TakeTicket(const std::string& name, std::uint32_t group, std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  return Sequence(collectives_[Key{name, group}].slots[rank].next++);
}

Result<Sequence> Meeting::Admit(const Key& key, const DeviceCall& call) {
  if (closed_) return *closed_;
  if (!collectives_.contains(key) && collectives_.size() >= kCollectivesMax) {
    return TooManyNames(key.name);
  }
  Collective& collective = collectives_[key];
  Result<Sequence> sequence = TakeSequence(collective, call);
  const bool failed = sequence.ok() && call.local_ranks.size() > 1 && collective.failed_through &&
                      sequence.value().value() <= *collective.failed_through;
  if (failed) return FailLate(collective, call);
  return sequence;
}

Status Meeting::FailLate(Collective& collective, const DeviceCall& call) {
  const Status failure = collective.failure;
  if (!call.step) {
    // The devices disagree on the number of calls. Devices that wait now would meet this device's
    // next call, which belongs to another step: a wrong sum. All of them start anew together.
    if (collective.gathering) Fail(*collective.gathering, failure);
    Realign(collective);
  }
  return Status(failure.code(), "this call had failed before rank " + std::to_string(call.rank) +
                                    " started it: " + failure.message());
}

Result<Sequence> Meeting::TakeSequence(Collective& collective, const DeviceCall& call) {
  Slot& slot = collective.slots[call.rank];
  if (slot.in_flight) {
    return Status(StatusCode::kInvalidArgument,
                  "rank " + std::to_string(call.rank) + " started " + Quoted(call.spec.name) +
                      " while its previous call (" + std::to_string(slot.last.value_or(0)) +
                      ") was open. Two calls that can run at the same time need names of "
                      "their own: give each one name='...'.");
  }
  if (call.step && slot.last && call.step->value() <= *slot.last) {
    return Status(StatusCode::kInvalidArgument,
                  "step must grow from call to call: " + Quoted(call.spec.name) + " on rank " +
                      std::to_string(call.rank) + " got step " +
                      std::to_string(call.step->value()) + " after " + std::to_string(*slot.last) +
                      ". Pass a counter that never decreases, or leave step= out to have the "
                      "calls counted.");
  }
  const std::uint32_t sequence = call.step ? call.step->value() : slot.next;
  slot.last = sequence;
  slot.next = std::max(slot.next, sequence + 1);
  return Sequence(sequence);
}

std::shared_ptr<Meeting::Gathering> Meeting::Join(const Key& key, Collective& collective,
                                                  DeviceCall call, Sequence sequence) {
  if (!collective.gathering) {
    auto gathering = std::make_shared<Gathering>();
    gathering->key = key;
    gathering->sequence = sequence;
    gathering->begun = ClockNow();
    const auto after = [begun = gathering->begun](Duration timeout) {
      return timeout > Duration::zero() ? SaturatingAdd(begun, timeout) : kNever;
    };
    gathering->stalls_at = after(options_.stall_timeout);
    gathering->deadline = after(options_.call_timeout);
    collective.gathering = gatherings_.insert(gatherings_.end(), std::move(gathering));
  }
  const Gatherings::iterator position = *collective.gathering;
  std::shared_ptr<Gathering> gathering = *position;
  std::vector<DeviceCall>& calls = gathering->calls;
  collective.slots[call.rank].in_flight = true;
  calls.push_back(std::move(call));
  const DeviceCall& first = calls.front();
  const DeviceCall& last = calls.back();
  if (gathering->sequence != sequence || !SameCollective(first, last)) {
    const Status why(StatusCode::kInvalidArgument,
                     "the devices of this process do not agree on " + Quoted(key.name) + ": " +
                         Described(first, gathering->sequence) + ", but " +
                         Described(last, sequence) +
                         ". All devices must make the same calls with the same shapes, dtypes, "
                         "mode and step; calls that differ need different name=.");
    // Neither of them reaches the network.
    options_.give_up(NetworkCall(*gathering, std::min(gathering->sequence, sequence)), why);
    gathering->sequence = std::max(gathering->sequence, sequence);
    Fail(position, why);
    return nullptr;
  }
  if (calls.size() < first.local_ranks.size()) {
    if (calls.size() == 1) StartWatching(*gathering);
    return nullptr;
  }
  gatherings_.erase(position);
  collective.gathering.reset();
  gathering->cancellations = cancellations_;
  gathering->complete_at = ClockNow();
  std::ranges::sort(calls, {}, &DeviceCall::rank);
  return gathering;
}

void Meeting::Fail(Gatherings::iterator which, const Status& why) {
  const std::shared_ptr<Gathering> gathering = *which;
  gatherings_.erase(which);
  Collective& collective = collectives_[gathering->key];
  collective.gathering.reset();
  collective.failed_through =
      std::max(collective.failed_through.value_or(0), gathering->sequence.value());
  collective.failure = why;
  ++failures_;
  options_.give_up(NetworkCall(*gathering, gathering->sequence), why);
  for (DeviceCall& call : gathering->calls) {
    collective.slots[call.rank].in_flight = false;
    const DeviceResult result{.status = why, .stats = {}, .sequence = gathering->sequence};
    pool_->Run([done = std::move(call.done), result] { done(result); });
  }
}

void Meeting::Realign(Collective& collective) {
  std::uint32_t next = 0;
  for (const auto& [rank, slot] : collective.slots) next = std::max(next, slot.next);
  for (auto& [rank, slot] : collective.slots) slot.next = next;
}

void Meeting::Reject(DeviceCall call, const Status& why) {
  ++failures_;
  Answer(std::move(call), why);
}

void Meeting::Answer(DeviceCall call, const Status& status) {
  pool_->Run([done = std::move(call.done), status] {
    done(DeviceResult{.status = status, .stats = {}, .sequence = {}});
  });
}

void Meeting::Reduce(const std::shared_ptr<Gathering>& gathering) {
  std::vector<DeviceCall>& calls = gathering->calls;
  try {
    const std::vector<Leaf>& into = calls.front().leaves;
    std::vector<const std::byte*> contributions(calls.size());
    for (std::size_t leaf = 0; leaf < into.size(); ++leaf) {
      for (std::size_t i = 0; i < calls.size(); ++i) contributions[i] = calls[i].leaves[leaf].data;
      SumContributions(calls.front().spec.element_type, contributions,
                       static_cast<std::size_t>(into[leaf].elements), 1.0, into[leaf].data);
    }
  } catch (const std::exception& unexpected) {
    return FailReduced(gathering, Status(StatusCode::kInternal, unexpected.what()));
  }
  std::optional<Status> cancelled;
  {
    const std::lock_guard lock(mutex_);
    if (gathering->cancellations != cancellations_) cancelled = cancel_reason_;
  }
  if (cancelled) return FailReduced(gathering, *cancelled);
  HandToNetwork(gathering);
}

void Meeting::FailReduced(const std::shared_ptr<Gathering>& gathering, const Status& why) {
  ++failures_;
  options_.give_up(NetworkCall(*gathering, gathering->sequence), why);
  Finish(gathering, why, CallStats{});
}

Submission Meeting::NetworkCall(const Gathering& gathering, Sequence sequence) {
  const DeviceCall& call = gathering.calls.front();
  Submission submission{.spec = call.spec, .sequence = sequence, .leaves = {}, .drain = call.drain};
  // Two groups can have the same processes (with different devices of theirs), so the group is part
  // of the identity of their calls on the wire.
  if (call.groups > 1) submission.spec.name += "[group " + std::to_string(call.group) + "]";
  return submission;
}

void Meeting::HandToNetwork(const std::shared_ptr<Gathering>& gathering) {
  Submission submission = NetworkCall(*gathering, gathering->sequence);
  submission.leaves = gathering->calls.front().leaves;
  options_.submit(std::move(submission), [self = shared_from_this(), gathering](
                                             const Status& status, const CallStats& stats) {
    self->Finish(gathering, status, stats);
  });
}

void Meeting::Finish(const std::shared_ptr<Gathering>& gathering, const Status& status,
                     const CallStats& stats) {
  std::vector<DeviceCall>& calls = gathering->calls;
  DeviceResult result{.status = status, .stats = stats, .sequence = gathering->sequence};
  if (calls.size() > 1) result.stats.elapsed = ClockNow() - gathering->complete_at;
  gathering->copies_left = calls.size() - 1;
  for (std::size_t i = 1; i < calls.size(); ++i) {
    // One task per device: completing one device may wait for another one's completion.
    pool_->Run([self = shared_from_this(), gathering, i, result] {
      if (result.status.ok()) CopyLeaves(gathering->calls.front(), gathering->calls[i]);
      if (--gathering->copies_left == 0) {
        // The first device comes last: XLA may reuse its buffer as soon as it is completed.
        self->pool_->Run([self, gathering, result] { self->Complete(*gathering, 0, result); });
      }
      self->Complete(*gathering, i, result);
    });
  }
  if (calls.size() == 1) Complete(*gathering, 0, result);
}

void Meeting::Complete(Gathering& gathering, std::size_t device, const DeviceResult& result) {
  DeviceCall& call = gathering.calls[device];
  {
    // Before `done`, which may start the next call.
    const std::lock_guard lock(mutex_);
    collectives_[gathering.key].slots[call.rank].in_flight = false;
  }
  const auto done = std::exchange(call.done, nullptr);
  done(result);
}

void Meeting::StartWatching(const Gathering& gathering) {
  if (!watcher_.joinable()) {
    try {
      watcher_ = std::thread([this] { Watch(); });
    } catch (const std::system_error&) {
      return;  // No thread is available; the next waiting call tries again.
    }
  }
  if (gathering.WakesAt() < wakes_at_) changed_.notify_all();
}

void Meeting::Watch() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const auto first = std::ranges::min_element(
        gatherings_, {}, [](const auto& gathering) { return gathering->WakesAt(); });
    const Instant now = ClockNow();
    if (first != gatherings_.end() && (*first)->deadline <= now) {
      Fail(first, MissingDevices(**first));
      continue;
    }
    if (first != gatherings_.end() && (*first)->stalls_at <= now) {
      TellStall(now, **first);
      continue;
    }
    wakes_at_ = first == gatherings_.end() ? kNever : (*first)->WakesAt();
    if (wakes_at_ == kNever) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, wakes_at_ - now);
    }
    wakes_at_ = Instant{};
  }
}

void Meeting::TellStall(Instant now, const Gathering& gathering) {
  options_.tell({.collective = gathering.key.name,
                 .sequence = gathering.sequence,
                 .started = gathering.Started(),
                 .missing = gathering.Missing(),
                 .elapsed = now - gathering.begun,
                 .others = gatherings_.size() - 1});
  // Calls that wait at the same time are part of the same stall.
  for (const auto& waiting : gatherings_) waiting->stalls_at = kNever;
}

Status Meeting::MissingDevices(const Gathering& gathering) const {
  const DeviceCall& first = gathering.calls.front();
  std::ostringstream waited;
  waited << std::chrono::duration<double>(options_.call_timeout).count() << " s (call_timeout_s)";
  return Status(StatusCode::kDeadlineExceeded,
                "of the devices of this process, rank " + Listed(gathering.Missing()) +
                    " did not start " + first.spec.description + " (call " +
                    std::to_string(gathering.sequence.value()) + ") within " + waited.str() +
                    " of the first; rank " + Listed(gathering.Started()) +
                    " did. Every device must make the same calls: look for a cond that differs "
                    "between devices, or an earlier error of the missing ones.");
}

void Meeting::Cancel(const Status& why) {
  const std::lock_guard lock(mutex_);
  CancelWaiting(why);
}

void Meeting::Close(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    CancelWaiting(why);
    if (!closed_) closed_ = why;
    changed_.notify_all();
  }
  const std::lock_guard lock(join_mutex_);
  if (watcher_.joinable()) watcher_.join();
}

void Meeting::CancelWaiting(const Status& why) {
  ++cancellations_;
  cancel_reason_ = why;
  while (!gatherings_.empty()) Fail(gatherings_.begin(), why);
}

}  // namespace optireduce
