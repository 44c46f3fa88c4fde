// One thread with its port and its endpoint: the loop that drives the protocol on UDP.

#ifndef FFI_RUNTIME_LANE_H_
#define FFI_RUNTIME_LANE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/net/datagram_port.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/protocol/stats.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Called exactly once per submission, on the lane's thread or, if the lane accepts no more calls,
// on the submitter's. Must not block, wait for the lane, or throw.
using CallDoneFunction = std::function<void(const Status& status, const CallStats& stats)>;

// The listener of a lane, called on its thread.
struct LaneListener {
  // The remaining ranks, after the removal of others; with the path that was the reason, if any.
  std::function<void(const std::vector<Rank>& live, const std::string& path)> ranks_left;
  // A call of a peer that this rank has passed by.
  std::function<void(LoneCall)> lone_call;
};

// A recent copy of a lane's state, for other threads.
struct LaneSnapshot {
  Counters counters;
  std::uint64_t socket_drops = 0;
  SendErrors send_errors;
  std::uint64_t memory_bytes = 0;
  std::vector<Rank> silent;     // see Endpoint::silent()
  std::vector<Rank> unreached;  // see Endpoint::unreached()
  // See Endpoint::UnprovenPaths(); before the first ProbePaths() nothing is said.
  std::optional<std::vector<UnprovenPath>> unproven;
  // Calls open for long, with their missing ranks; by Submission::record.
  std::map<std::uint64_t, WaitingCall> waiting;
};

// The state of a lane at the time of a request.
struct LaneReport {
  std::vector<PeerReport> peers;
  // All open calls, by Submission::record.
  std::map<std::uint64_t, WaitingCall> waiting;
};

class Lane {
 public:
  // Starts the thread, which owns port and endpoint from then on. `datagram_bytes_max` is the value
  // of the session.
  Lane(std::unique_ptr<DatagramPort> port, std::unique_ptr<Endpoint> endpoint,
       std::size_t datagram_bytes_max, LaneListener listener);
  // Equivalent to Close("the communicator was destroyed").
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // The calls below and `snapshot` are for any thread. The lane sets Submission::token.
  void Submit(Submission submission, CallDoneFunction done);
  // Fails every open or queued call; later calls are not affected.
  void Cancel(const Status& why);
  // See Endpoint::ProbePaths().
  void ProbePaths(std::vector<std::size_t> lengths);
  // See Endpoint::Remove().
  void Remove(Rank rank, const std::string& why);
  // See Endpoint::GiveUp().
  void GiveUp(Submission call, const Status& why);
  // Fails every open call, announces that this rank leaves, and ends the thread. Lasts until the
  // peers have acknowledged the announcement and their undelivered data, 1 s at most. Later
  // submissions fail. May be repeated.
  void Close(const Status& why);
  // Begins Close() without waiting for its end.
  void StartClosing(const Status& why);
  LaneSnapshot snapshot() const;
  // Asks the lane's thread, between two of its turns; nothing if it does not answer before `until`.
  // Only one thread at a time may call it.
  std::optional<LaneReport> Examine(Instant until);
  // Endpoint::FindTimings(); nothing if the lane closes, or does not answer in time.
  std::optional<Timings> FindTimings();
  // See Endpoint::ContinueFrom().
  void ContinueFrom(Timings earlier);
  // After Close(), once: see Endpoint::FindLateData().
  std::vector<LateData> TakeLateData();

 private:
  // A request of another thread: a call, or a function.
  struct Request {
    Submission submission;
    CallDoneFunction done;
    std::function<void()> run;
  };
  // Runs `request` on the lane's thread, in order with the submitted calls. No effect once the lane
  // closes.
  void Post(std::function<void()> request);

  // All members below run on the lane's thread.
  void Run();
  void Loop();
  // Handles the requests of other threads. False if the lane is to end.
  bool HandleRequests();
  void HandleRequest(Request request);
  bool ReceiveSome();
  bool SendSome();
  void DeliverCompletions();
  // True if a lane that has been quiet since then polls again before it sleeps.
  bool MayPoll(Instant& quiet_since) const;
  // Time of the next turn if no event comes earlier.
  Instant NextTurn() const;
  void FinishDelivery(const Status& why);
  void Publish();
  void Report();
  // The open calls of the program that were submitted before `before`, by Submission::record.
  std::map<std::uint64_t, WaitingCall> WaitingCalls(Instant before) const;
  void TellListener();
  Status CloseReason() const;
  // Ends all accepted and queued calls with `why`, and accepts no more.
  void FailAll(const Status& why);

  const std::unique_ptr<DatagramPort> port_;
  const std::unique_ptr<Endpoint> endpoint_;
  const LaneListener listener_;
  std::vector<Rank> live_;
  std::vector<std::byte> buffer_;
  // A batch refused by the port, first to be sent; its bytes are copied to `refused_bytes_`,
  // because the data of calls changes.
  std::optional<Transmit> refused_;
  std::vector<std::byte> refused_bytes_;
  struct Call {
    CallDoneFunction done;
    std::uint64_t record = 0;
  };
  std::unordered_map<std::uint64_t, Call> calls_;  // the call of each token
  std::uint64_t next_token_ = 1;
  int polls_left_ = 0;                                 // remaining polls before the lane sleeps
  std::vector<Request> taken_;                         // reused between turns
  std::optional<std::vector<UnprovenPath>> unproven_;  // null before the first probes

  mutable std::mutex mutex_;  // guards the following members
  std::vector<Request> queue_;
  std::optional<Status> closed_;  // the reason for which requests are refused
  bool closing_ = false;
  LaneSnapshot snapshot_;
  std::optional<LaneReport> report_;
  std::condition_variable reported_;
  std::vector<LateData> late_data_;

  std::mutex join_mutex_;  // Close() may be called by several threads
  std::thread thread_;     // last: it uses everything above
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_LANE_H_
