// The rendezvous of the devices of one process before the network: a call of a collective leaves
// the process once, with the sum of its devices' contributions, and all of them get its result.
//
// Also identifies the call of a device: XLA starts independent calls in a different order on every
// device, so the identity is (name, group, rank) and a sequence per identity, never the order of
// arrival.

#ifndef FFI_RUNTIME_DEVICE_RENDEZVOUS_H_
#define FFI_RUNTIME_DEVICE_RENDEZVOUS_H_

#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"
#include "ffi/runtime/call_monitor.h"
#include "ffi/runtime/called_collectives.h"
#include "ffi/runtime/completion_pool.h"
#include "ffi/runtime/lane.h"

namespace optireduce {

// The outcome of a call for one device.
struct DeviceResult {
  Status status;  // not ok: the values of the leaves are undefined
  CallStats stats;
  Sequence sequence;
};

// The part of one device in one call.
struct DeviceCall {
  CollectiveSpec spec;  // `members` are the processes of the group; `name` is the user's
  std::uint32_t group = 0;
  std::uint32_t groups = 1;
  std::uint32_t rank = 0;  // its rank in the group
  // Ranks of the group that are devices of this process, ascending; `rank` is one of them.
  std::vector<std::uint32_t> local_ranks;
  // The caller's own sequence, which has to grow; without it calls are counted.
  std::optional<Sequence> step;
  std::vector<Leaf> leaves;  // valid until `done`
  bool drain = false;        // see Submission
  bool averages = false;     // see Submission
  Quorum quorum{};           // see Submission
  // The name without the number of the call in its program: see CalledCollectives.
  std::string key;
  bool drains_if_any = false;  // see CalledCollectives::Check
  // The program goes on without waiting: the call waits for the end of its device's previous one,
  // and the next one for its own.
  bool begun = false;
  // Called once, on the completion pool.
  std::function<void(const DeviceResult&)> done;
};

// Submits a call to the network; `done` is called once, on the completion pool.
using SubmitFunction = std::function<void(Submission submission, CallDoneFunction done)>;
// Announces a call that is never made, whose number is used up. Must not block.
using GiveUpFunction = std::function<void(const Submission& call, const Status& why)>;

// Reports devices that wait for others to the user. Must not block.
using TellDevicesFunction = std::function<void(DevicesEvent event)>;

struct DeviceRendezvousOptions {
  SubmitFunction submit;
  GiveUpFunction give_up;
  TellDevicesFunction tell;
  // Longest wait of the first device of a call for the last one; 0: unlimited. The limit is that
  // between processes, because a device may compute for as long as another process.
  Duration call_timeout{};
  // Age of the wait at which it is reported; 0: never.
  Duration stall_timeout{};
};

// Thread-safe.
class DeviceRendezvous : public std::enable_shared_from_this<DeviceRendezvous> {
 public:
  static std::shared_ptr<DeviceRendezvous> Create(std::shared_ptr<CompletionPool> pool,
                                                  DeviceRendezvousOptions options);
  // Equivalent to Close("the communicator was destroyed").
  ~DeviceRendezvous();
  DeviceRendezvous(const DeviceRendezvous&) = delete;
  DeviceRendezvous& operator=(const DeviceRendezvous&) = delete;

  // Never blocks: `call.done` receives every outcome of the call.
  void Start(DeviceCall call);

  // Ok if a drain matches a call of this process: see CalledCollectives.
  Status CheckDrain(const DeviceCall& call) const;

  // Takes the next sequence of (name, group, rank), for a caller that needs the number before the
  // call and passes it as `step`.
  Sequence TakeNextSequence(const std::string& name, std::uint32_t group, std::uint32_t rank);

  // Fails every call that some devices have not started or that has not reached the network yet.
  void Cancel(const Status& why);
  // Cancels, and fails every later call too. May be repeated.
  void Close(const Status& why);

  // Calls that some devices have started and others have not, oldest first.
  std::vector<DevicesEvent> Waiting() const;

  // Calls that failed before they reached the network.
  std::uint64_t failures() const { return failures_; }

 private:
  struct LocalReduction;
  using LocalReductions = std::list<std::shared_ptr<LocalReduction>>;

  struct Key {
    std::string name;
    std::uint32_t group = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // The calls of one device.
  struct Slot {
    std::uint32_t next = 0;  // sequence of the next call without a step
    std::optional<std::uint32_t> last;
    bool in_flight = false;
    bool begun = false;              // the call in flight
    std::deque<DeviceCall> waiting;  // later calls; bounded by BegunCalls, and one other call
  };
  struct Collective {
    std::map<std::uint32_t, Slot> slots;  // one for each rank
    // The one call that some but not all local devices have started. There is at most one: a device
    // starts its next call after this one has ended.
    std::optional<LocalReductions::iterator> local_reduction;
    // The newest call that failed before all devices had started it, and the reason, for later
    // devices.
    std::optional<std::uint32_t> failed_through;
    Status failure;
  };

  DeviceRendezvous(std::shared_ptr<CompletionPool> pool, DeviceRendezvousOptions options);

  // Requires the mutex, as all functions up to ReportStall().
  bool HasToWait(const Key& key, const DeviceCall& call) const;
  // Starts a call that does not have to wait. Returns it if all its devices have started it,
  // otherwise null; the caller passes it to Proceed().
  std::shared_ptr<LocalReduction> StartNow(const Key& key, DeviceCall call);
  // The call of a device has ended. Starts the next one that waits, as StartNow().
  std::shared_ptr<LocalReduction> Release(const Key& key, std::uint32_t rank);
  Result<Sequence> Admit(const Key& key, const DeviceCall& call);
  Result<Sequence> TakeSequence(Collective& collective, const DeviceCall& call);
  // The error of a call that failed before this device started it.
  Status FailLate(Collective& collective, const DeviceCall& call);
  // The call if all its devices have started it, otherwise null.
  std::shared_ptr<LocalReduction> Join(const Key& key, Collective& collective, DeviceCall call,
                                       Sequence sequence);
  void Fail(LocalReductions::iterator which, const Status& why);
  static void RestartNumbering(Collective& collective);
  void Reject(DeviceCall call, const Status& why);
  // Ends a call that was never submitted.
  void CompleteNow(DeviceCall call, const Status& status);
  void CancelWaiting(const Status& why);
  void StartWaiting(const LocalReduction& local_reduction);
  Status MissingDevices(const LocalReduction& local_reduction) const;
  DevicesEvent Describe(Instant now, const LocalReduction& local_reduction) const;
  void ReportStall(Instant now, const LocalReduction& local_reduction);

  // The caller does not hold the mutex. Null: no effect.
  void Proceed(const std::shared_ptr<LocalReduction>& local_reduction);
  // Runs on the completion pool.
  void Reduce(const std::shared_ptr<LocalReduction>& local_reduction);
  // Ends a call that does not reach the network.
  void FailReduced(const std::shared_ptr<LocalReduction>& local_reduction, const Status& why);
  void Finish(const std::shared_ptr<LocalReduction>& local_reduction, const Status& status,
              const CallStats& stats);
  void Complete(LocalReduction& local_reduction, std::size_t device, const DeviceResult& result);

  void SubmitToNetwork(const std::shared_ptr<LocalReduction>& local_reduction);
  // The call as the network sees it, without leaves.
  static Submission NetworkCall(const LocalReduction& local_reduction, Sequence sequence);

  // The body of the watching thread: reports, and later fails, calls that wait for too long.
  void WaitForDevices();

  const std::shared_ptr<CompletionPool> pool_;
  const DeviceRendezvousOptions options_;
  std::atomic<std::uint64_t> failures_ = 0;

  mutable std::mutex mutex_;  // guards the following members
  std::map<Key, Collective> collectives_;
  CalledCollectives called_;
  LocalReductions local_reductions_;  // oldest first
  std::uint64_t cancellations_ = 0;
  Status cancel_reason_;
  std::optional<Status> closed_;
  std::condition_variable changed_;  // signals the watching thread
  Instant wakes_at_{};               // later events need no signal

  std::mutex join_mutex_;  // Close() may be called by several threads
  std::thread waiter_;     // started at the first call of several devices
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_DEVICE_RENDEZVOUS_H_
