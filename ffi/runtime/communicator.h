// One process's end of a session: its lanes, its calls, and the rendezvous of its devices.

#ifndef FFI_RUNTIME_COMMUNICATOR_H_
#define FFI_RUNTIME_COMMUNICATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/net/udp_port.h"
#include "ffi/protocol/submission.h"
#include "ffi/runtime/begun_calls.h"
#include "ffi/runtime/call_monitor.h"
#include "ffi/runtime/communicator_options.h"
#include "ffi/runtime/completion_pool.h"
#include "ffi/runtime/device_rendezvous.h"
#include "ffi/runtime/lane.h"
#include "ffi/runtime/status_report.h"
#include "ffi/runtime/status_server.h"

namespace optireduce {

// Features granted by the kernel to all sockets.
struct SocketFeatures {
  bool segmentation_offload = false;
  bool receive_offload = false;
};

// Thread-safe.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Binds the sockets; sends nothing. A world of one process has no sockets.
  static Result<std::shared_ptr<Communicator>> Create(const CommunicatorOptions& options,
                                                      std::shared_ptr<CompletionPool> pool);
  // Equivalent to Close("the communicator was destroyed").
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::vector<std::uint16_t> ports() const { return ports_; }
  // The granted size of the smallest buffer among the sockets.
  std::size_t granted_receive_buffer_bytes() const { return granted_receive_buffer_bytes_; }

  SocketFeatures features() const { return features_; }

  // Starts the lanes; may succeed once. `ranks` holds every rank, this one included;
  // `datagram_bytes_max` must fit every path and be equal on all ranks; `peer_receive_buffer_bytes`
  // is the smallest socket buffer of the session.
  Status Connect(const std::vector<RankAddress>& ranks, std::size_t datagram_bytes_max,
                 std::size_t peer_receive_buffer_bytes);

  // Answers connections to a new socket in this folder with the report of Examine(), until Close().
  // The name of the socket has the session, the rank and the process.
  Status ServeStatus(const std::string& folder);
  // After Connect(), for one thread at a time: the state of this process. Waits for a lane for a
  // second at most.
  StatusReport Examine() const;

  // Before the first calls of a session: takes over the deadlines that the process has learned in
  // the session before. Waits for its lanes for a second each at most.
  void ContinueFrom(const Communicator& earlier);

  // The part of one local device in a call; see DeviceRendezvous::Start. Fills in the deadlines.
  void Start(DeviceCall call);
  Status CheckDrain(const DeviceCall& call) const { return rendezvous_->CheckDrain(call); }
  Sequence TakeNextSequence(const std::string& name, std::uint32_t group, std::uint32_t rank) {
    return rendezvous_->TakeNextSequence(name, group, rank);
  }

  // The calls that programs begin and end in two steps; Start() starts them.
  BegunCalls& begun_calls() const { return *begun_calls_; }

  // One call of the whole process. `done` is called once, on the completion pool.
  void Submit(Submission submission, CallDoneFunction done);

  // The program knows that a process is gone, before its silence shows it: see Endpoint::Remove().
  Status Remove(std::uint16_t rank, const std::string& why);

  // Fails every open call with kCancelled; later calls are not affected.
  void Cancel(const std::string& reason);
  // Fails every call for good, informs the peers and ends the threads. May be repeated.
  void Close(const std::string& reason);

  // After Close(), once: late data of its collectives that no call or drain has returned.
  std::vector<LateData> TakeLateData();

  // Every counter by name, summed over the lanes.
  std::vector<std::pair<std::string, std::uint64_t>> counters() const;

  // The calls handed to the network that have ended with a result, by collective.
  std::vector<std::pair<std::string, CallTotals>> collective_totals() const {
    return monitor_.Totals();
  }

  // The newest calls handed to the network, oldest first.
  std::vector<CallRecord> FlightRecords() const;
  // The open calls among them.
  std::vector<CallRecord> CallsUnderWay() const;
  // The peers that a lane has given up, see Endpoint::silent(). Close() does not change them.
  std::vector<Rank> SilentRanks() const;
  // Endpoint::ProbePaths(), on all lanes; after Connect().
  void ProbePaths(const std::vector<std::size_t>& lengths);
  // Endpoint::UnprovenPaths() of each lane, after the last probes. All paths of a lane that has not
  // said anything yet.
  std::vector<std::pair<std::uint16_t, UnprovenPath>> UnprovenPaths() const;

  // After Close(): the peers that have not acknowledged the leave message of a lane, see
  // Endpoint::unreached().
  std::vector<Rank> UnreachedRanks() const;
  // See CallMonitor::Wait(). Close() ends the wait.
  std::optional<MonitorEvent> WaitForEvent();

  // With the session: see SessionTag().
  const CommunicatorOptions& options() const { return options_; }
  // 0 before Connect().
  std::size_t datagram_bytes_max() const { return datagram_bytes_max_; }

 private:
  explicit Communicator(const CommunicatorOptions& options, std::shared_ptr<CompletionPool> pool);
  Status OpenPorts();
  void CreateRendezvous();
  std::vector<Rank> RanksOfLanes(std::vector<Rank> LaneSnapshot::* which) const;
  // Requires the mutex: the endpoint of a lane, whose port gets its peers.
  Result<std::unique_ptr<Endpoint>> ConnectLane(const std::vector<RankAddress>& ranks,
                                                std::shared_ptr<SharedMembership> membership,
                                                const EndpointOptions& options);
  Status ValidateRanks(const std::vector<RankAddress>& ranks, std::size_t datagram_bytes_max) const;
  // Ok, or the reason for which no call can be submitted.
  Status CheckConnected() const;
  // Announces that this process never makes the call.
  void GiveUp(const Submission& call, const Status& why);
  void SubmitToLanes(Submission submission, CallDoneFunction done);
  // Fills in the ranks that the calls wait for.
  void AddWaiting(std::span<CallRecord> records) const;
  // Adds what the threads of the lanes answer.
  void ExamineLanes(StatusReport& report) const;
  // Counts the call and calls `done` on the completion pool.
  void Complete(CallDoneFunction done, const Status& status, const CallStats& stats);

  const CommunicatorOptions options_;
  const std::shared_ptr<CompletionPool> pool_;
  std::shared_ptr<DeviceRendezvous> rendezvous_;
  const std::shared_ptr<BegunCalls> begun_calls_ = std::make_shared<BegunCalls>();
  std::vector<std::uint16_t> ports_;
  std::size_t granted_receive_buffer_bytes_ = 0;
  SocketFeatures features_;
  std::atomic<std::size_t> datagram_bytes_max_ = 0;
  std::atomic<std::uint64_t> calls_completed_ = 0;
  std::atomic<std::uint64_t> calls_failed_ = 0;
  CallMonitor monitor_;

  mutable std::mutex mutex_;  // guards the following members
  std::vector<std::unique_ptr<UdpPort>> unconnected_;
  std::optional<Status> closed_;
  std::unique_ptr<StatusServer> status_server_;
  // Filled once, by Connect(), and constant from then on, so that readers need no lock afterwards.
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_COMMUNICATOR_H_
