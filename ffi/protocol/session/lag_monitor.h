// Ranks that are behind. Where late data is deferred, a call waits for a peer that is too far
// behind as long as the peer answers; a peer that does not is left behind until it has caught up.
// Where late data is dropped, no call waits: a call that all other members are past ends.

#ifndef FFI_PROTOCOL_SESSION_LAG_MONITOR_H_
#define FFI_PROTOCOL_SESSION_LAG_MONITOR_H_

#include <set>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/session/verdict.h"

namespace optireduce {

class LagMonitor {
 public:
  // `session` must outlive this.
  explicit LagMonitor(SessionState& session)
      : options_(session.options), peers_(session.peers), calls_(session.calls) {}

  // ---- Where late data is deferred.

  // The call waits for nothing but peers that are behind.
  void Add(CallId call) { lagging_.insert(call); }
  // Leaves behind the peers that do not answer, and asks the quiet ones for a sign. Names the calls
  // that wait, or did; some may be complete now.
  std::vector<Verdict> HandleTimeout(Instant now);
  // When to do that.
  Instant timeout() const;
  // True if a call waits for data that the peer lacks of a call that is over; that data is then at
  // the front of the peer's backlog.
  bool PutFirst(Rank to);

  // ---- Where late data is dropped.

  // A member has shown its position: it is in `call`, or `past` it. Names the calls that all others
  // are past.
  std::vector<Verdict> RecordAttendance(Instant now, Collective& collective, MemberIndex from,
                                        Sequence call, bool past);
  // A member has sent data of a call that is over here. It learns that nothing comes in return: if
  // the program here makes no more calls, no data tells it.
  void AnswerPast(Collective& collective, MemberIndex to, Sequence call);
  // The call has begun. If all others are past it, it ends; and as this rank is behind, they learn
  // its position, and wait for it again, up to their deadlines.
  void HandleSubmitted(Instant now, Exchange& exchange);

 private:
  // Calls `visit(call, peer)` for the peers that a call waits for, in order, and the call.
  template <typename Visit>
  void ForEachLagging(CallId call, Visit visit) const;

  // Every other member that is not absent is past the call, or is spare in its quorum.
  bool OthersArePast(const Exchange& exchange) const;

  const EndpointOptions& options_;
  PeerTable& peers_;
  CallTable& calls_;
  std::set<CallId> lagging_;  // they wait, or did
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_LAG_MONITOR_H_
