// One thread with its port and its endpoint: the loop that drives the protocol on UDP.

#ifndef FFI_RUNTIME_LANE_H_
#define FFI_RUNTIME_LANE_H_

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

// Called exactly once for each submission, on the lane's thread or (when the lane accepts no more)
// on the submitter's: it must not block, wait for the lane, or throw.
using CallDoneFunction = std::function<void(const Status& status, const CallStats& stats)>;

// Called on the lane's thread with the remaining ranks, once it knows that others were removed.
using RanksLeftFunction = std::function<void(const std::vector<Rank>& live)>;

// A recent copy of the state of a lane, for other threads.
struct LaneSnapshot {
  Counters counters;
  std::uint64_t socket_drops = 0;
  SendErrors send_errors;
  std::uint64_t memory_bytes = 0;
  std::vector<Rank> silent;     // see Endpoint::silent()
  std::vector<Rank> unreached;  // see Endpoint::unreached()
  // Calls that have been under way for long, and their missing ranks; by Submission::record.
  std::map<std::uint64_t, WaitingCall> waiting;
};

class Lane {
 public:
  // Starts the thread, which owns port and endpoint from here on. `datagram_bytes_max` is the
  // session's.
  Lane(std::unique_ptr<DatagramPort> port, std::unique_ptr<Endpoint> endpoint,
       std::size_t datagram_bytes_max, RanksLeftFunction ranks_left);
  // As Close("the communicator was destroyed").
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // The calls below and `snapshot` are for any thread. Submission::token is the lane's to set.
  void Submit(Submission submission, CallDoneFunction done);
  // Fails every call under way, including queued ones; later ones are not affected.
  void Cancel(const Status& why);
  // See Endpoint::GiveUp().
  void GiveUp(Submission call, const Status& why);
  // Fails every call under way, announces that this rank leaves, and ends the thread. Takes until
  // the peers have acknowledged that and their undelivered data, 1 s at most. Later submissions
  // fail. May be repeated.
  void Close(const Status& why);
  // The same without waiting for the end.
  void StartClosing(const Status& why);
  LaneSnapshot snapshot() const;
  // After Close(): see Endpoint::FindLateData(). Once.
  std::vector<LateData> TakeLateData();

 private:
  struct Pending {
    Submission submission;
    CallDoneFunction done;
    std::optional<Status> given_up;  // the reason that the call is never made
  };
  // Everything below runs on the lane's thread.
  void Run();
  void Loop();
  // Handles the requests of other threads. False when the lane is to end.
  bool TakeRequests();
  void Take(Pending pending);
  bool ReceiveSome();
  bool SendSome();
  void HandOver();
  // Time of the next turn without an earlier event.
  Instant NextTurn() const;
  void Linger(const Status& why);
  void Publish();
  void TellRanksLeft();
  Status CloseReason() const;
  // Ends all calls, accepted or queued, with `why`, and accepts no more.
  void FailAll(const Status& why);

  const std::unique_ptr<DatagramPort> port_;
  const std::unique_ptr<Endpoint> endpoint_;
  const RanksLeftFunction ranks_left_;
  std::vector<Rank> live_;
  std::vector<std::byte> buffer_;
  // Refused by the port, goes first; a copy, in `refused_bytes_`, for the data of calls changes.
  std::optional<Transmit> refused_;
  std::vector<std::byte> refused_bytes_;
  struct Call {
    CallDoneFunction done;
    std::uint64_t record = 0;
  };
  std::unordered_map<std::uint64_t, Call> calls_;  // by token
  std::uint64_t next_token_ = 1;
  int looks_ = 0;               // polls in a row, before the lane sleeps
  std::vector<Pending> taken_;  // reused from turn to turn

  mutable std::mutex mutex_;  // guards the following members
  std::vector<Pending> queue_;
  std::optional<Status> cancelled_;  // for the calls under way and the first `cancelled_queued_`
  std::size_t cancelled_queued_ = 0;
  std::optional<Status> closed_;  // why no submission is taken any more
  bool closing_ = false;
  LaneSnapshot snapshot_;
  std::vector<LateData> late_data_;

  std::mutex join_mutex_;  // Close() may be called by several threads
  std::thread thread_;     // last: it uses everything above
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_LANE_H_
