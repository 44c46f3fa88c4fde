// Calls that wait for peers that are too far behind, where late data is deferred. A peer that
// answers is waited for; one that does not is left behind, until it has caught up.

#ifndef FFI_PROTOCOL_SESSION_LAG_MONITOR_H_
#define FFI_PROTOCOL_SESSION_LAG_MONITOR_H_

#include <set>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/session/call_table.h"
#include "ffi/protocol/session/peer_table.h"

namespace optireduce {

class LagMonitor {
 public:
  // `peers` and `calls` must outlive this.
  LagMonitor(Duration peer_timeout, PeerTable& peers, CallTable& calls)
      : peer_timeout_(peer_timeout), peers_(peers), calls_(calls) {}

  // All that the call waits for is peers that are behind.
  void Add(CallId call) { lagging_.insert(call); }
  // Leaves behind the peers that do not answer, and asks the quiet ones for a sign. Returns the
  // calls that wait, or did; some may be complete now.
  std::vector<CallId> HandleTimeout(Instant now);
  // When to do that.
  Instant timeout() const;
  // A call waits for what the peer is to be sent of one that is over: brings that to the front of
  // the peer's backlog. False if there is nothing of the kind.
  bool PutFirst(Rank to);

 private:
  // Calls `visit(call, peer)` for the peers that a call waits for, in order, and the call.
  template <typename Visit>
  void ForEachLagging(CallId call, Visit visit) const;

  Duration peer_timeout_;
  PeerTable& peers_;
  CallTable& calls_;
  std::set<CallId> lagging_;  // they wait, or did
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_LAG_MONITOR_H_
