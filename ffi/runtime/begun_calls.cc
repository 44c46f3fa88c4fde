#include "ffi/runtime/begun_calls.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ffi/base/quoted.h"
#include "ffi/codec/element_type.h"

namespace optireduce {

Status BegunCalls::MakeRoom(Slot& slot, const std::string& name) {
  if (slot.open.size() < kOpenMax) return Status();
  Call& oldest = *slot.open.front();
  if (!oldest.result || oldest.taker) {
    return Status(StatusCode::kResourceExhausted,
                  std::to_string(kOpenMax) + " calls of " + Quoted(name) +
                      " are under way on one device, begun and not ended. Pass each handle to "
                      "jax_optireduce.end(), or begin fewer calls ahead.");
  }
  const Buffer returned = std::move(oldest.values);
  slot.open.pop_front();
  --counters_.open;
  ++counters_.dropped;
  return Status();
}

Result<std::uint32_t> BegunCalls::Begin(const BegunCallsOf& of, DeviceCall& call) {
  const std::size_t element_bytes = SizeOf(call.spec.element_type);
  auto begun = std::make_shared<Call>();
  begun->processes = call.spec.members.size();
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[of];
    if (Status status = MakeRoom(slot, call.spec.name); !status.ok()) return status;
    begun->number = ++slot.last;
    begun->values = memory_.Take(static_cast<std::size_t>(call.spec.elements) * element_bytes);
    slot.open.push_back(begun);
    ++counters_.open;
    ++counters_.under_way;
  }
  std::byte* to = begun->values.data();
  for (const Leaf& leaf : call.leaves) {
    const std::size_t bytes = static_cast<std::size_t>(leaf.elements) * element_bytes;
    std::memcpy(to, leaf.data, bytes);
    to += bytes;
  }
  call.leaves = {{.data = begun->values.data(), .elements = call.spec.elements}};
  call.begun = true;
  call.done = [self = shared_from_this(), of, begun](const DeviceResult& result) {
    self->Ended(of, begun, result);
  };
  return begun->number;
}

void BegunCalls::Ended(const BegunCallsOf& of, const std::shared_ptr<Call>& call,
                       const DeviceResult& result) {
  {
    const std::lock_guard lock(mutex_);
    call->result = result;
    --counters_.under_way;
    if (!call->taker) return;
    std::erase(slots_[of].open, call);
    --counters_.open;
  }
  HandOver(*call);
}

Status BegunCalls::End(const BegunCallsOf& of, std::uint32_t number, CallTaker taker) {
  std::shared_ptr<Call> call;
  {
    const std::lock_guard lock(mutex_);
    const auto slot = slots_.find(of);
    const std::uint32_t last = slot == slots_.end() ? 0 : slot->second.last;
    if (number > last || number == 0) {
      return Status(StatusCode::kFailedPrecondition,
                    "no call of this device belongs to the handle (number " +
                        std::to_string(number) + " of " + std::to_string(last) +
                        "). End it on the mesh on which it was begun, with the numbers in it "
                        "unchanged.");
    }
    std::deque<std::shared_ptr<Call>>& open = slot->second.open;
    const auto found =
        std::ranges::find(open, number, [](const auto& each) { return each->number; });
    if (found == open.end() || (*found)->taker) {
      return Status(
          StatusCode::kFailedPrecondition,
          "the handle of call " + std::to_string(number) +
              " was ended before; each handle is ended once. (Or it was one of more than " +
              std::to_string(kOpenMax) +
              " open handles, and its result was dropped: counter handles_dropped.)");
    }
    call = *found;
    if (taker.bytes != call->values.size()) {
      return InvalidArgument("the results of end() have " + std::to_string(taker.bytes) +
                             " bytes, the call has " + std::to_string(call->values.size()) +
                             "; pass the handle as begin() returned it.");
    }
    call->taker = std::move(taker);
    if (!call->result) return Status();
    open.erase(found);
    --counters_.open;
  }
  HandOver(*call);
  return Status();
}

void BegunCalls::HandOver(Call& call) {
  const DeviceResult result = *call.result;
  if (result.status.ok()) call.taker->copy({call.values.data(), call.values.size()});
  {
    // Before `done`, which may begin the next call.
    const std::lock_guard lock(mutex_);
    const Buffer returned = std::move(call.values);
  }
  const auto done = std::move(call.taker->done);
  done(result, call.processes);
}

BegunCallsCounters BegunCalls::counters() const {
  const std::lock_guard lock(mutex_);
  BegunCallsCounters counters = counters_;
  counters.memory_bytes = memory_.used_bytes();
  return counters;
}

}  // namespace optireduce
