#include "ffi/runtime/device_rendezvous.h"

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
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/collective/directory.h"
#include "ffi/protocol/collective/policy_traits.h"

namespace optireduce {
namespace {

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
                "this process has used " + std::to_string(Directory::kCollectivesMax) +
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
struct DeviceRendezvous::LocalReduction {
  Key key;
  Sequence sequence;
  Instant begun;
  Instant stalls_at = kNever;       // time of its report
  Instant deadline = kNever;        // the time by which all devices must start
  std::vector<DeviceCall> calls;    // ordered by their start; sorted by rank once complete
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

std::shared_ptr<DeviceRendezvous> DeviceRendezvous::Create(std::shared_ptr<CompletionPool> pool,
                                                           DeviceRendezvousOptions options) {
  return std::shared_ptr<DeviceRendezvous>(
      new DeviceRendezvous(std::move(pool), std::move(options)));
}

DeviceRendezvous::DeviceRendezvous(std::shared_ptr<CompletionPool> pool,
                                   DeviceRendezvousOptions options)
    : pool_(std::move(pool)), options_(std::move(options)) {}

DeviceRendezvous::~DeviceRendezvous() {
  Close(Status(StatusCode::kCancelled, "the communicator was destroyed"));
}

void DeviceRendezvous::Start(DeviceCall call) {
  std::shared_ptr<LocalReduction> local_reduction;
  {
    const std::lock_guard lock(mutex_);
    const Key key{call.spec.name, call.group};
    // A drain of such a collective never has data in flight, and its leaves are zeros.
    if (!closed_ && call.drain && !RetainsLateData(call.spec))
      return CompleteNow(std::move(call), Status());
    if (HasToWait(key, call)) {
      collectives_[key].slots[call.rank].waiting.push_back(std::move(call));
      return;
    }
    local_reduction = StartNow(key, std::move(call));
  }
  Proceed(local_reduction);
}

bool DeviceRendezvous::HasToWait(const Key& key, const DeviceCall& call) const {
  const auto collective = collectives_.find(key);
  if (closed_ || collective == collectives_.end()) return false;
  const auto slot = collective->second.slots.find(call.rank);
  if (slot == collective->second.slots.end() || !slot->second.in_flight) return false;
  if (call.begun) return true;
  // Two calls at the same time that were not begun are an error.
  return slot->second.begun &&
         std::ranges::all_of(slot->second.waiting, [](const auto& each) { return each.begun; });
}

std::shared_ptr<DeviceRendezvous::LocalReduction> DeviceRendezvous::StartNow(const Key& key,
                                                                             DeviceCall call) {
  Result<Sequence> sequence = Admit(key, call);
  if (!sequence.ok()) {
    Reject(std::move(call), sequence.status());
    return nullptr;
  }
  // Before the call can end and a drain can follow.
  if (!call.drain) called_.Record(call.key, call.spec);
  return Join(key, collectives_[key], std::move(call), sequence.value());
}

std::shared_ptr<DeviceRendezvous::LocalReduction> DeviceRendezvous::Release(const Key& key,
                                                                            std::uint32_t rank) {
  Slot& slot = collectives_[key].slots[rank];
  slot.in_flight = false;
  // A call that fails immediately does not start.
  while (!slot.in_flight && !slot.waiting.empty()) {
    DeviceCall next = std::move(slot.waiting.front());
    slot.waiting.pop_front();
    if (auto complete = StartNow(key, std::move(next))) return complete;
  }
  return nullptr;
}

void DeviceRendezvous::Proceed(const std::shared_ptr<LocalReduction>& local_reduction) {
  if (!local_reduction) return;
  // With one device there is nothing to add, and the call can be submitted immediately.
  if (local_reduction->calls.size() == 1) return SubmitToNetwork(local_reduction);
  pool_->Run([self = shared_from_this(), local_reduction] { self->Reduce(local_reduction); });
}

Status DeviceRendezvous::CheckDrain(const DeviceCall& call) const {
  const std::lock_guard lock(mutex_);
  return called_.Check(call.key, call.spec, call.drains_if_any);
}

Sequence DeviceRendezvous::TakeNextSequence(const std::string& name, std::uint32_t group,
                                            std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  return Sequence(collectives_[Key{name, group}].slots[rank].next++);
}

Result<Sequence> DeviceRendezvous::Admit(const Key& key, const DeviceCall& call) {
  if (closed_) return *closed_;
  if (!collectives_.contains(key) && collectives_.size() >= Directory::kCollectivesMax) {
    return TooManyNames(key.name);
  }
  Collective& collective = collectives_[key];
  Result<Sequence> sequence = TakeSequence(collective, call);
  const bool failed = sequence.ok() && call.local_ranks.size() > 1 && collective.failed_through &&
                      sequence.value().value() <= *collective.failed_through;
  if (failed) return FailLate(collective, call);
  return sequence;
}

Status DeviceRendezvous::FailLate(Collective& collective, const DeviceCall& call) {
  const Status failure = collective.failure;
  if (!call.step) {
    // The devices disagree on the number of calls. Devices that wait now would meet this device's
    // next call, which belongs to another step: a wrong sum. All of them start anew together.
    if (collective.local_reduction) Fail(*collective.local_reduction, failure);
    RestartNumbering(collective);
  }
  return Status(failure.code(),
                "this call had failed before rank " + std::to_string(call.rank) +
                    " started it: " + failure.message(),
                failure.blame());
}

Result<Sequence> DeviceRendezvous::TakeSequence(Collective& collective, const DeviceCall& call) {
  Slot& slot = collective.slots[call.rank];
  if (slot.in_flight) {
    return InvalidArgument("rank " + std::to_string(call.rank) + " started " +
                           Quoted(call.spec.name) + " while its previous call (" +
                           std::to_string(slot.last.value_or(0)) +
                           ") was open. Two calls that can run at the same time need names of "
                           "their own: give each one name='...'.");
  }
  if (call.step && slot.last && call.step->value() <= *slot.last) {
    return InvalidArgument("step must grow from call to call: " + Quoted(call.spec.name) +
                           " on rank " + std::to_string(call.rank) + " got step " +
                           std::to_string(call.step->value()) + " after " +
                           std::to_string(*slot.last) +
                           ". Pass a counter that never decreases, or leave step= out to have the "
                           "calls counted.");
  }
  const std::uint32_t sequence = call.step ? call.step->value() : slot.next;
  slot.last = sequence;
  slot.next = std::max(slot.next, sequence + 1);
  return Sequence(sequence);
}

std::shared_ptr<DeviceRendezvous::LocalReduction> DeviceRendezvous::Join(const Key& key,
                                                                         Collective& collective,
                                                                         DeviceCall call,
                                                                         Sequence sequence) {
  if (!collective.local_reduction) {
    auto local_reduction = std::make_shared<LocalReduction>();
    local_reduction->key = key;
    local_reduction->sequence = sequence;
    local_reduction->begun = ClockNow();
    const auto after = [begun = local_reduction->begun](Duration timeout) {
      return timeout > Duration::zero() ? SaturatingAdd(begun, timeout) : kNever;
    };
    local_reduction->stalls_at = after(options_.stall_timeout);
    local_reduction->deadline = after(options_.call_timeout);
    collective.local_reduction =
        local_reductions_.insert(local_reductions_.end(), std::move(local_reduction));
  }
  const LocalReductions::iterator position = *collective.local_reduction;
  std::shared_ptr<LocalReduction> local_reduction = *position;
  std::vector<DeviceCall>& calls = local_reduction->calls;
  Slot& slot = collective.slots[call.rank];
  slot.in_flight = true;
  slot.begun = call.begun;
  calls.push_back(std::move(call));
  const DeviceCall& first = calls.front();
  const DeviceCall& last = calls.back();
  if (local_reduction->sequence != sequence || !SameCollective(first, last)) {
    const Status why(StatusCode::kInvalidArgument,
                     "the devices of this process do not agree on " + Quoted(key.name) + ": " +
                         Described(first, local_reduction->sequence) + ", but " +
                         Described(last, sequence) +
                         ". All devices must make the same calls with the same shapes, dtypes, "
                         "mode and step; calls that differ need different name=.",
                     {.cause = Cause::kDisagreement});
    // Neither of them reaches the network.
    options_.give_up(NetworkCall(*local_reduction, std::min(local_reduction->sequence, sequence)),
                     why);
    local_reduction->sequence = std::max(local_reduction->sequence, sequence);
    Fail(position, why);
    return nullptr;
  }
  if (calls.size() < first.local_ranks.size()) {
    if (calls.size() == 1) StartWaiting(*local_reduction);
    return nullptr;
  }
  local_reductions_.erase(position);
  collective.local_reduction.reset();
  local_reduction->cancellations = cancellations_;
  local_reduction->complete_at = ClockNow();
  std::ranges::sort(calls, {}, &DeviceCall::rank);
  return local_reduction;
}

void DeviceRendezvous::Fail(LocalReductions::iterator which, const Status& why) {
  const std::shared_ptr<LocalReduction> local_reduction = *which;
  local_reductions_.erase(which);
  Collective& collective = collectives_[local_reduction->key];
  collective.local_reduction.reset();
  collective.failed_through =
      std::max(collective.failed_through.value_or(0), local_reduction->sequence.value());
  collective.failure = why;
  ++failures_;
  options_.give_up(NetworkCall(*local_reduction, local_reduction->sequence), why);
  for (DeviceCall& call : local_reduction->calls) {
    DeviceResult result{.status = why, .stats = {}, .sequence = local_reduction->sequence};
    result.stats.elapsed = ClockNow() - local_reduction->begun;
    pool_->Run([done = std::move(call.done), result] { done(result); });
    if (const auto next = Release(local_reduction->key, call.rank)) {
      pool_->Run([self = shared_from_this(), next] { self->Proceed(next); });
    }
  }
}

void DeviceRendezvous::RestartNumbering(Collective& collective) {
  std::uint32_t next = 0;
  for (const auto& [rank, slot] : collective.slots) next = std::max(next, slot.next);
  for (auto& [rank, slot] : collective.slots) slot.next = next;
}

void DeviceRendezvous::Reject(DeviceCall call, const Status& why) {
  ++failures_;
  CompleteNow(std::move(call), why);
}

void DeviceRendezvous::CompleteNow(DeviceCall call, const Status& status) {
  pool_->Run([done = std::move(call.done), status, leaves = std::move(call.leaves),
              element_bytes = SizeOf(call.spec.element_type)]() mutable {
    if (status.ok()) MoveToPlace(leaves, element_bytes);
    done(DeviceResult{.status = status, .stats = {}, .sequence = {}});
  });
}

void DeviceRendezvous::Reduce(const std::shared_ptr<LocalReduction>& local_reduction) {
  std::vector<DeviceCall>& calls = local_reduction->calls;
  try {
    const std::vector<Leaf>& into = calls.front().leaves;
    std::vector<const std::byte*> contributions(calls.size());
    for (std::size_t leaf = 0; leaf < into.size(); ++leaf) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        contributions[i] = calls[i].leaves[leaf].values();
      }
      SumContributions(calls.front().spec.element_type, contributions,
                       static_cast<std::size_t>(into[leaf].elements), 1.0, into[leaf].data);
    }
  } catch (const std::exception& unexpected) {
    return FailReduced(local_reduction, Status(StatusCode::kInternal, unexpected.what()));
  }
  std::optional<Status> cancelled;
  {
    const std::lock_guard lock(mutex_);
    if (local_reduction->cancellations != cancellations_) cancelled = cancel_reason_;
  }
  if (cancelled) return FailReduced(local_reduction, *cancelled);
  SubmitToNetwork(local_reduction);
}

void DeviceRendezvous::FailReduced(const std::shared_ptr<LocalReduction>& local_reduction,
                                   const Status& why) {
  ++failures_;
  options_.give_up(NetworkCall(*local_reduction, local_reduction->sequence), why);
  Finish(local_reduction, why, CallStats{});
}

Submission DeviceRendezvous::NetworkCall(const LocalReduction& local_reduction, Sequence sequence) {
  const DeviceCall& call = local_reduction.calls.front();
  Submission submission{.spec = call.spec,
                        .sequence = sequence,
                        .leaves = {},
                        .drain = call.drain,
                        .averages = call.averages,
                        .quorum = call.quorum};
  // Two groups can have the same processes (with different devices of theirs), so the group is part
  // of the identity of their calls on the wire.
  if (call.groups > 1) submission.spec.name += "[group " + std::to_string(call.group) + "]";
  return submission;
}

void DeviceRendezvous::SubmitToNetwork(const std::shared_ptr<LocalReduction>& local_reduction) {
  Submission submission = NetworkCall(*local_reduction, local_reduction->sequence);
  submission.leaves = local_reduction->calls.front().leaves;
  if (local_reduction->calls.size() > 1) {
    // The sum of the devices is in place.
    for (Leaf& leaf : submission.leaves) leaf.from = nullptr;
  }
  options_.submit(std::move(submission), [self = shared_from_this(), local_reduction](
                                             const Status& status, const CallStats& stats) {
    self->Finish(local_reduction, status, stats);
  });
}

void DeviceRendezvous::Finish(const std::shared_ptr<LocalReduction>& local_reduction,
                              const Status& status, const CallStats& stats) {
  std::vector<DeviceCall>& calls = local_reduction->calls;
  // The network knows nothing of a call within one process.
  DeviceResult result{.status = status,
                      .stats = stats,
                      .sequence = std::max(stats.number, local_reduction->sequence)};
  if (calls.size() > 1) result.stats.elapsed = ClockNow() - local_reduction->complete_at;
  local_reduction->copies_left = calls.size() - 1;
  for (std::size_t i = 1; i < calls.size(); ++i) {
    // One task per device: completing one device may wait for another one's completion.
    pool_->Run([self = shared_from_this(), local_reduction, i, result] {
      if (result.status.ok()) CopyLeaves(local_reduction->calls.front(), local_reduction->calls[i]);
      if (--local_reduction->copies_left == 0) {
        // The first device comes last: XLA may reuse its buffer as soon as it is completed.
        self->pool_->Run(
            [self, local_reduction, result] { self->Complete(*local_reduction, 0, result); });
      }
      self->Complete(*local_reduction, i, result);
    });
  }
  if (calls.size() == 1) Complete(*local_reduction, 0, result);
}

void DeviceRendezvous::Complete(LocalReduction& local_reduction, std::size_t device,
                                const DeviceResult& result) {
  DeviceCall& call = local_reduction.calls[device];
  std::shared_ptr<LocalReduction> next;
  {
    // Before `done`, which may start the next call.
    const std::lock_guard lock(mutex_);
    next = Release(local_reduction.key, call.rank);
  }
  Proceed(next);
  const auto done = std::exchange(call.done, nullptr);
  done(result);
}

void DeviceRendezvous::StartWaiting(const LocalReduction& local_reduction) {
  if (!waiter_.joinable()) {
    try {
      waiter_ = std::thread([this] { WaitForDevices(); });
    } catch (const std::system_error&) {
      return;  // No thread is available; the next waiting call tries again.
    }
  }
  if (local_reduction.WakesAt() < wakes_at_) changed_.notify_all();
}

void DeviceRendezvous::WaitForDevices() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const auto first = std::ranges::min_element(
        local_reductions_, {},
        [](const auto& local_reduction) { return local_reduction->WakesAt(); });
    const Instant now = ClockNow();
    if (first != local_reductions_.end() && (*first)->deadline <= now) {
      Fail(first, MissingDevices(**first));
      continue;
    }
    if (first != local_reductions_.end() && (*first)->stalls_at <= now) {
      ReportStall(now, **first);
      continue;
    }
    wakes_at_ = first == local_reductions_.end() ? kNever : (*first)->WakesAt();
    if (wakes_at_ == kNever) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, wakes_at_ - now);
    }
    wakes_at_ = Instant{};
  }
}

std::vector<DevicesEvent> DeviceRendezvous::Waiting() const {
  const std::lock_guard lock(mutex_);
  std::vector<DevicesEvent> calls;
  const Instant now = ClockNow();
  for (const auto& waiting : local_reductions_) calls.push_back(Describe(now, *waiting));
  return calls;
}

DevicesEvent DeviceRendezvous::Describe(Instant now, const LocalReduction& local_reduction) const {
  return {.collective = local_reduction.key.name,
          .sequence = local_reduction.sequence,
          .started = local_reduction.Started(),
          .missing = local_reduction.Missing(),
          .elapsed = now - local_reduction.begun,
          .others = local_reductions_.size() - 1};
}

void DeviceRendezvous::ReportStall(Instant now, const LocalReduction& local_reduction) {
  options_.tell(Describe(now, local_reduction));
  // Calls that wait at the same time are part of the same stall.
  for (const auto& waiting : local_reductions_) waiting->stalls_at = kNever;
}

Status DeviceRendezvous::MissingDevices(const LocalReduction& local_reduction) const {
  const DeviceCall& first = local_reduction.calls.front();
  std::ostringstream waited;
  waited << std::chrono::duration<double>(options_.call_timeout).count() << " s (call_timeout_s)";
  return Status(StatusCode::kDeadlineExceeded,
                "of the devices of this process, rank " + Listed(local_reduction.Missing()) +
                    " did not start " + first.spec.description + " (call " +
                    std::to_string(local_reduction.sequence.value()) + ") within " + waited.str() +
                    " of the first; rank " + Listed(local_reduction.Started()) +
                    " did. Every device must make the same calls: look for a cond that differs "
                    "between devices, or an earlier error of the missing ones.",
                {.cause = Cause::kCallTimeout});
}

void DeviceRendezvous::Cancel(const Status& why) {
  const std::lock_guard lock(mutex_);
  CancelWaiting(why);
}

void DeviceRendezvous::Close(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    // First, so that the calls that wait for those that end here do not start.
    if (!closed_) closed_ = why;
    CancelWaiting(why);
    changed_.notify_all();
  }
  const std::lock_guard lock(join_mutex_);
  if (waiter_.joinable()) waiter_.join();
}

void DeviceRendezvous::CancelWaiting(const Status& why) {
  ++cancellations_;
  cancel_reason_ = why;
  // Not those that start at the end of another one here: for their devices they are later calls.
  const LocalReductions cancelled = local_reductions_;
  for (const auto& each : cancelled) {
    const auto found = std::ranges::find(local_reductions_, each);
    if (found != local_reductions_.end()) Fail(found, why);
  }
}

}  // namespace optireduce
