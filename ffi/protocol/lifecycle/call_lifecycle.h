// The calls of this rank from their start to their end: made by the program (call_start.cc) or
// opened by a peer's datagram, complete or failed (call_lifecycle.cc), and over for the program but
// not for its peers (ended_calls.cc).
//
// Only this class ends calls; the others return verdicts on them.

#ifndef FFI_PROTOCOL_LIFECYCLE_CALL_LIFECYCLE_H_
#define FFI_PROTOCOL_LIFECYCLE_CALL_LIFECYCLE_H_

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/detectors/mismatch_detector.h"
#include "ffi/protocol/detectors/wait_monitor.h"
#include "ffi/protocol/session/admission.h"
#include "ffi/protocol/session/lag_monitor.h"
#include "ffi/protocol/session/lane_membership.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/session/transmitter.h"
#include "ffi/protocol/session/verdict.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

// Late data of a collective that is in no call yet.
struct LateData {
  std::string description;  // the collective's description
  std::uint64_t bytes = 0;
};

// The parts of an endpoint that the calls need; all outlive them.
struct LifecycleParts {
  const LaneMembership& membership;
  Admission& admission;
  LagMonitor& lag;
  Transmitter& transmitter;
  MismatchDetector& mismatch;
  WaitMonitor& waits;
};

class CallLifecycle {
 public:
  CallLifecycle(SessionState& session, const LifecycleParts& parts);

  // ---- The start.

  // Starts a call that nothing keeps from it.
  void Begin(Instant now, Collective& collective, Submission submission);
  // Ends a call that the others are past before it begins: its contribution joins the next call of
  // `origin` that begins, and late results of the collective in the present view come with it.
  void Pass(const Submission& submission, Collective& origin, Collective& in_view);
  // Submits to the call, opening it where no peer has.
  void SubmitTo(Instant now, Collective& collective, Submission submission);
  // The program makes none of the calls before `next` that it has not made. Their data is late.
  void SkipTo(Instant now, Collective& collective, Sequence next, bool drain);
  // The call is over for this rank, which has not submitted it.
  void GiveUpUncalled(Instant now, Collective& collective, const Submission& call,
                      const Status& why);
  // The call of a peer's datagram; opens it where that is allowed, else null.
  OpenCall* Admit(Instant now, const Header& header);

  // ---- What comes in.

  // The peer calls `header.call`: it has the results of calls before.
  void ConfirmEarlierCalls(Instant now, const Header& header);
  // A member, or this rank, waits in a drain, or for a later call: open calls do not wait for it.
  void SpareAbsent(Instant now);
  // A peer has all of some call: others may go on that had to wait for this.
  void Advance(Instant now, CollectiveId collective, Rank peer);
  std::vector<LateData> FindLateData() const;

  // ---- The end.

  // Calls that are not open are skipped.
  void Apply(Instant now, std::vector<Verdict> verdicts);
  // Does what is due in the calls.
  void ExpireDue(Instant now);
  // When to do that.
  Instant timeout() const;
  // Ends all that are complete.
  void FinishComplete(Instant now);
  void FinishIfComplete(Instant now, OpenCall& open);
  // The call has merged into a later one.
  void RecordMerged(CallId call);
  // Data that was due before the call's end has been sent, or nothing is left of it.
  void EraseIfRemovable(CallId call);
  // Fails the program's calls, all or those that outlive their members; false if there are none.
  bool FailAll(Instant now, const Status& why, bool only_outliving);
  // This rank leaves: peers that continue without it need no errors of its calls.
  void Leave() { leaving_ = true; }
  // The error of a call that a peer has given up; else ok.
  Status WhyGivenUp(CallId call) const {
    return mismatch_.WhyGivenUp(*directory_.Find(call.collective), call.sequence);
  }
  // Reports a call that never opens.
  void Report(CallDone done);
  std::optional<CallDone> PollEvent();

 private:
  // The program skips all calls before `next` that it has not made: calls that only peers have
  // opened end without it. True if all earlier calls are over for the program.
  bool Supersede(Instant now, const Collective& collective, Sequence next, bool drain);
  // The program jumps over a call that peers have opened.
  void Abandon(Instant now, const Collective& collective, CallId call, bool drain);
  // Contributions and results of the call have joined others before the program makes it.
  bool IsOverEverywhere(const Collective& collective, CallId call);
  // A call whose contributions and results have joined others before the program made it.
  void SubmitLate(const Submission& submission, Collective& collective);
  // The program has late results, and nothing else.
  void ReportPassed(const Submission& submission, Collective& in_view, BucketView& bucket);
  // The call has begun without the members that are gone.
  void DropGonePeers(Instant now, const Collective& collective, Exchange& exchange);
  // Does what is due in the call.
  void Expire(Instant now, CallId call);
  void Fail(Instant now, OpenCall& open, Status why);
  // The error as the peers of this rank see it.
  Status ForPeers(const Status& why) const;
  void Erase(OpenCall& open);
  void EndFinalDrain(OpenCall& open);
  const Peer& peer(Rank rank) const { return *peers_[rank]; }

  const EndpointOptions& options_;
  Counters& counters_;
  PeerTable& peers_;
  Directory& directory_;
  CallTable& calls_;
  BufferPool& pool_;
  const LaneMembership& membership_;
  Admission& admission_;
  LagMonitor& lag_;
  Transmitter& transmitter_;
  MismatchDetector& mismatch_;
  WaitMonitor& waits_;
  bool leaving_ = false;
  std::deque<CallDone> events_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_LIFECYCLE_CALL_LIFECYCLE_H_
