// Calls of collectives that continue without silent ranks: the collective that a call belongs to in
// the present view, and calls that wait: for an agreement on it, or for their turn (catch_up.h).
//
// Without a rank a collective is another one (other members, another layout): its successor. The
// last call of the old one is its final drain, a drain that no program makes: it brings everything
// that was late among the members that are left. Its result comes with a call of the successor.

#ifndef FFI_PROTOCOL_LIFECYCLE_CALL_GATE_H_
#define FFI_PROTOCOL_LIFECYCLE_CALL_GATE_H_

#include <deque>
#include <optional>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/detectors/wait_monitor.h"
#include "ffi/protocol/lifecycle/call_lifecycle.h"
#include "ffi/protocol/lifecycle/catch_up.h"
#include "ffi/protocol/session/lane_membership.h"
#include "ffi/protocol/session/session_state.h"

namespace optireduce {

class CallGate {
 public:
  // All must outlive this.
  CallGate(SessionState& session, LaneMembership& membership, CallLifecycle& lifecycle,
           WaitMonitor& waits)
      : session_(session),
        membership_(membership),
        lifecycle_(lifecycle),
        waits_(waits),
        catch_up_(session, membership) {}

  // Keeps a call until it can begin. `given_up`: the program never makes it, which peers learn once
  // it is known which ranks these are.
  void Add(Instant now, Submission submission, std::optional<Status> given_up);
  bool empty() const { return pending_.empty(); }
  // An error if the call can never begin.
  Status Check(const Submission& submission) const { return catch_up_.Check(submission); }
  // Calls `visit(spec, since)` for the drains that wait for all members.
  template <typename Visit>
  void ForEachPendingDrain(Visit visit) const {
    for (const PendingCall& pending : pending_) {
      if (pending.waits_for != nullptr) visit(pending.waits_for->spec, pending.since);
    }
  }
  // Starts the pending calls, and the final drains, that can begin. True if it has suspected a
  // member: the membership may change.
  bool Start(Instant now);
  void HandleReturn(Instant now, Collective& collective, MemberIndex member, Sequence skipped,
                    bool patient) {
    catch_up_.HandleReturn(collective, member, skipped, patient);
    lifecycle_.SpareAbsent(now);
  }
  // An adopted view contains this rank. Voids collectives that only removed members have called:
  // they have no final drain.
  void HandleView(Instant now);

  // Fails the pending calls; false if there are none.
  bool FailAll(Instant now, const Status& why);
  // Their peers learn of the end in another way.
  void Clear() { pending_.clear(); }
  // Fails the calls that were pending for too long.
  void HandleTimeout(Instant now);
  Instant timeout() const;

 private:
  struct PendingCall {
    Submission submission;
    Instant since;
    std::optional<Status> given_up;
    std::optional<Sequence> number{};       // the number under which it waits for its turn
    Instant waits_until = kNever;           // set if only time is in its way
    const Collective* waits_for = nullptr;  // a drain, until all members wait in it
  };
  // The outcome of one pass over the pending calls.
  struct Pass {
    bool started = false;    // some call
    bool frozen = false;     // no call may begin
    bool suspected = false;  // some member
  };
  Pass StartPending(Instant now);
  // The collective among the ranks that take part in the call. Wants a final drain where the
  // members have changed.
  Result<Collective*> CollectiveInView(Collective& origin, Sequence sequence);
  // False if the call begins now.
  bool MustWait(Instant now, PendingCall& pending, const CatchUp::Turn& turn, Collective& origin,
                Collective& in_view, Pass& pass);
  // The call waits for a final drain, or for a decision on a member that has left.
  bool AwaitsAgreement(Instant now, const Collective& in_view, Sequence number, bool drain,
                       Pass& pass);
  // Ends a drain that a peer has given up, without telling the others, who know.
  bool EndGivenUpDrain(Instant now, PendingCall& pending, Collective& origin);
  void Begin(Instant now, PendingCall pending, const CatchUp::Turn& turn, Collective& origin,
             Collective& in_view);
  void Fail(Instant now, PendingCall& pending, Status why);
  // Ends the calls that only peers have opened. False while calls of the collective are under way.
  bool EndUncalled(Instant now, const Collective& collective);
  // Starts the final drain. False while calls of the collective are under way.
  bool BeginFinalDrain(Instant now, Collective& collective);

  SessionState& session_;
  LaneMembership& membership_;
  CallLifecycle& lifecycle_;
  WaitMonitor& waits_;
  CatchUp catch_up_;
  std::deque<PendingCall> pending_;                // calls in the order of the program
  std::vector<Collective*> awaiting_final_drain_;  // want a final drain
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_LIFECYCLE_CALL_GATE_H_
