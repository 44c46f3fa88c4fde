// One rank's end of a session: all its calls and all its peers, as a state machine without sockets,
// clocks, threads or randomness. A driver (runtime/lane.cc on UDP, sim/simulate.cc in virtual time)
// feeds it and drains it:
//
//   Submit, HandleDatagram, HandleTimeout   go in;
//   PollTransmit, PollTimeout, PollEvent    come out.
//
// After any of the three that go in, poll the three that come out: PollTransmit until it returns
// nothing (or the network takes no more), PollEvent until it returns nothing, and PollTimeout once.
// Sending may create events and events may need sending, so poll events after transmits. A driver
// that could not send may come back later: nothing is lost by not polling.
//
// Owned by one thread. Not thread-safe, on purpose.

#ifndef FFI_PROTOCOL_ENDPOINT_H_
#define FFI_PROTOCOL_ENDPOINT_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/bytes.h"
#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/detectors/failure_detector.h"
#include "ffi/protocol/detectors/mismatch_detector.h"
#include "ffi/protocol/detectors/wait_monitor.h"
#include "ffi/protocol/lifecycle/call_gate.h"
#include "ffi/protocol/lifecycle/call_lifecycle.h"
#include "ffi/protocol/lifecycle/delivery_handler.h"
#include "ffi/protocol/lifecycle/segment_receiver.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/session/admission.h"
#include "ffi/protocol/session/lag_monitor.h"
#include "ffi/protocol/session/lane_membership.h"
#include "ffi/protocol/session/peer_report.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/session/transmitter.h"
#include "ffi/protocol/stats.h"
#include "ffi/protocol/submission.h"
#include "ffi/protocol/transmit.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

// A path to a peer over which the longest datagrams of the session have not been seen to pass.
struct UnprovenPath {
  Rank peer;
  bool heard = false;            // some datagram of the peer has arrived
  bool answered = false;         // the peer has acknowledged a short one
  std::size_t passed_bytes = 0;  // length of the longest padded one that it has acknowledged
};

class Endpoint {
 public:
  // `membership`: that of the rank, which its lanes share; null if this is its only lane.
  static Result<std::unique_ptr<Endpoint>> Create(
      const EndpointOptions& options, std::shared_ptr<SharedMembership> membership = nullptr);
  Endpoint(const Endpoint&) = delete;

  // Starts a call. Exactly one CallDone with its token follows, unless this returns an error: wrong
  // members, a member that is gone, a sequence that does not grow.
  Status Submit(Instant now, Submission submission);

  // Takes one UDP payload, from anywhere: a datagram that does not belong here is counted and has
  // no effect.
  void HandleDatagram(Instant now, std::span<const std::byte> datagram);

  // Does what is due. Spurious calls are harmless.
  void HandleTimeout(Instant now);

  // Makes the next datagrams to send; `buffer` must hold at least one of the session's largest.
  // `batch_max` limits how many (1 where the kernel has no segmentation offload).
  std::optional<Transmit> PollTransmit(Instant now, std::span<std::byte> buffer,
                                       std::size_t batch_max);

  // When to call HandleTimeout; kNever when nothing is pending.
  Instant PollTimeout() const;

  std::optional<CallDone> PollEvent() { return lifecycle_.PollEvent(); }

  // The next call of a peer that waits for this rank, whose program has passed it by: for the log.
  std::optional<LoneCall> PollLoneCall() { return mismatch_.PollLone(); }

  // The ranks that take part in calls that continue without silent ranks.
  std::vector<Rank> live() const { return membership_.view().members; }

  // A path from the rank, or to it, that loses long datagrams, in words; empty if none is known.
  std::string DescribeNarrowPath(Rank rank) const { return failures_.DescribeNarrowPath(rank); }

  // Peers that were silent for too long, and have not been heard since. Peers that have left in
  // good order are not among them.
  std::vector<Rank> silent() const;
  // Peers that have not acknowledged that this rank leaves, and are not known to be gone.
  std::vector<Rank> unreached() const;

  // Sends each peer a probe, until it has acknowledged one, and a datagram of each of `lengths`
  // that exceeds those acknowledged before; to be repeated, since all may be lost. The session's
  // longest datagram is the greatest permitted length.
  void ProbePaths(std::span<const std::size_t> lengths);
  // The peers that have not acknowledged the longest datagram.
  std::vector<UnprovenPath> UnprovenPaths() const;

  // The open calls that were submitted before `before`, and the ranks that they wait for.
  std::vector<WaitingCall> WaitingCalls(Instant before) const;

  // All peers, in the order of their ranks.
  std::vector<PeerReport> PeerReports() const { return MakePeerReports(session_); }

  // Data that is lost, as far as this rank knows, if no call and no drain follows: late data that
  // is here, that peers are to get from here, or that its newest calls lacked. Errors of rounding
  // to a wire format are not in it, nor are values with their weights, which need no drain (see
  // docs/decisions/0048).
  std::vector<LateData> FindLateData() const { return lifecycle_.FindLateData(); }

  // The timing that the rank has learned in this session, for its endpoint of the next session,
  // which takes it before its first calls.
  Timings FindTimings() const { return session_.directory.FindTimings(); }
  void ContinueFrom(Timings earlier) { session_.directory.ContinueFrom(std::move(earlier)); }

  // Fails every call under way with `why`, which is not ok; their leaves are not touched
  // afterwards. The endpoint stays usable. Peers that wait for this rank in one of these calls, or
  // make it later, get an error with the reason.
  void Cancel(Instant now, const Status& why);
  // The program never makes this call, though its number is used up; `why` is not ok. Peers learn
  // of it as of a call that is cancelled. The call needs no leaves, and nothing follows.
  void GiveUp(Instant now, Submission call, const Status& why);

  // The program knows that a peer is gone: as if it had announced that it leaves.
  void Remove(Instant now, Rank rank, std::string_view why);

  // Fails every call with `why`, which is not ok, and tells the peers that this rank leaves, so
  // that theirs need not wait for a timeout. Further submissions are refused.
  void Leave(Instant now, const Status& why);
  // After Leave(): every peer that still listens has the data of this rank that it needs, and
  // knows.
  bool finished() const;

  // Bytes held for calls, beyond the leaves themselves.
  std::size_t memory_bytes() const { return session_.pool.used_bytes(); }

  const Counters& counters() const { return session_.counters; }

 private:
  Endpoint(const EndpointOptions& options, std::shared_ptr<SharedMembership> membership);

  // ---- Calls of the program.
  Status Check(const CollectiveSpec& spec) const;
  Status WhyRemoved() const;  // ok unless it was
  Result<Collective*> FindOrAdd(Instant now, const CollectiveSpec& spec);
  // The error of a call that does not survive a member that is gone; else ok.
  Status WhyUnreachable(const Collective& collective, const Submission& submission) const;
  // Submits a call of a collective that continues without silent ranks.
  Status SubmitPending(Instant now, Collective& collective, Submission submission);
  // Starts the calls that wait for an agreement and can begin now.
  void StartPendingCalls(Instant now);
  // False if there are none.
  bool FailAll(Instant now, const Status& why, bool only_outliving);

  // ---- Datagrams. False: the datagram cannot be taken now, and has to come again.
  void HandleAuthentic(Instant now, Peer& from, const Header& header,
                       std::span<const std::byte> payload, std::size_t datagram_bytes);
  bool Dispatch(Instant now, const Header& header, std::span<const std::byte> payload);
  bool HandleAnnouncement(Instant now, const Header& header, std::span<const std::byte> payload);
  // `why`: the reason of a call that was given up.
  void HandleAnnounced(Instant now, const Header& header, Collective& collective,
                       const std::string& why);
  void HandleAcknowledgement(Instant now, const Header& header, std::span<const std::byte> payload);

  // ---- Peers and members.
  void HandlePeerTimeouts(Instant now);
  // Looks at the calls that wait without a deadline.
  void CheckWaiting(Instant now);
  // Looks for silent members of the drains that wait for all.
  void CheckPendingDrains(Instant now);
  // The error of a call that waits in vain; else ok.
  Status WhyHopeless(Instant now, const Exchange& exchange);
  void CheckPath(Instant now, Rank rank);
  void MarkSilent(Instant now, Rank rank, std::string why);
  // After a change of the peer's state.
  void DropPeer(Instant now, Rank rank);
  // After a possible change of the membership, on this lane or another.
  void FollowMembership(Instant now);
  void HandleView(Instant now);

  SessionState session_;
  std::vector<std::byte> opened_;  // a payload that came encrypted
  LaneMembership membership_;
  LagMonitor lag_;
  Admission admission_;
  Transmitter transmitter_;
  MismatchDetector mismatch_;
  FailureDetector failures_;
  WaitMonitor waits_;
  CallLifecycle lifecycle_;
  CallGate gate_;
  SegmentReceiver segments_;
  DeliveryHandler deliveries_;
  std::optional<Status> leaving_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_ENDPOINT_H_
