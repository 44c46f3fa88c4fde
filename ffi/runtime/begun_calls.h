// Calls that a program begins and ends in two steps. Their values are in memory of the engine: from
// the begin, which copies the leaves and returns at once, to the end, which takes the result.
//
// A call is identified by its collective, its device and a number, which the program carries in a
// handle. A program may lose a handle: each device has kOpenMax open calls of a collective at most,
// and a begin beyond them drops the result of the oldest one.

#ifndef FFI_RUNTIME_BEGUN_CALLS_H_
#define FFI_RUNTIME_BEGUN_CALLS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "ffi/base/status.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/runtime/device_rendezvous.h"

namespace optireduce {

// One collective on one device.
struct BegunCallsOf {
  std::uint32_t collective = 0;  // hash of the name; collectives with equal ones share the numbers
  std::uint32_t group = 0;
  std::uint32_t rank = 0;  // its rank in the group
  friend auto operator<=>(const BegunCallsOf&, const BegunCallsOf&) = default;
};

// The program that ends a call.
struct CallTaker {
  std::size_t bytes = 0;  // size of the results; it is an error to end a call of another size
  // Copies the result; not called after an error.
  std::function<void(std::span<const std::byte> values)> copy;
  // Called once, afterwards; `processes` are those of the group. May run the rest of the program.
  std::function<void(const DeviceResult& result, std::size_t processes)> done;
};

struct BegunCallsCounters {
  std::size_t under_way = 0;     // begun calls whose allreduce has not ended
  std::size_t open = 0;          // begun calls whose end the program has not called or waits in
  std::size_t memory_bytes = 0;  // memory of the open calls
  std::uint64_t dropped = 0;     // calls whose results were dropped
};

// Thread-safe.
class BegunCalls : public std::enable_shared_from_this<BegunCalls> {
 public:
  // Open calls of a collective on a device. Chosen: a program has one or two; the others are
  // handles that were lost with a failed step.
  static constexpr std::size_t kOpenMax = 8;

  // Copies the leaves of `call`, and gives it the copy instead; sets its `done` and `begun`. The
  // caller then starts the call. Returns its number, from 1.
  Result<std::uint32_t> Begin(const BegunCallsOf& of, DeviceCall& call);

  // Hands over the result of a call: on this thread if the call has ended, otherwise later, on the
  // completion pool. After an error `taker` is not used.
  Status End(const BegunCallsOf& of, std::uint32_t number, CallTaker taker);

  BegunCallsCounters counters() const;

 private:
  struct Call {
    std::uint32_t number = 0;
    Buffer values;
    std::size_t processes = 0;
    std::optional<DeviceResult> result;
    std::optional<CallTaker> taker;
  };
  struct Slot {
    std::uint32_t last = 0;                  // number of the newest call
    std::deque<std::shared_ptr<Call>> open;  // oldest first
  };

  // Requires the mutex: drops the oldest call if there are too many.
  Status MakeRoom(Slot& slot, const std::string& name);
  void Ended(const BegunCallsOf& of, const std::shared_ptr<Call>& call, const DeviceResult& result);
  // Hands over the result, and returns the memory.
  void HandOver(Call& call);

  mutable std::mutex mutex_;  // guards the following members
  BufferPool memory_;
  std::map<BegunCallsOf, Slot> slots_;
  BegunCallsCounters counters_;  // all but the memory
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_BEGUN_CALLS_H_
