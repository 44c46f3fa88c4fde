// The ranks in front of a collective, which have made its newest call. The next call is begun by
// one of these: all others wait for it (catch_up.h). So the ranks in front tell whether there is
// something to wait for, whatever the ranks behind do, and in whichever collective.
//
// A rank comes to a stop in a drain, which waits for all; where it has left; and in a call of a
// collective whose ranks in front have all come to a stop. Ranks that wait for each other, in calls
// of different collectives, would all wait in vain.

#ifndef FFI_PROTOCOL_LIFECYCLE_FRONT_H_
#define FFI_PROTOCOL_LIFECYCLE_FRONT_H_

#include <optional>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/session/session_state.h"

namespace optireduce {

class Front {
 public:
  // The session must outlive this.
  explicit Front(const SessionState& session) : session_(session) {}

  // The members beside this rank that are not removed.
  std::vector<Rank> FindOthers(const Collective& origin) const;
  // The others make no call before this rank comes to their drain: those in front wait there.
  bool Drains(const Collective& origin) const;
  // This rank waits for the next call of the others. If all have come to a stop, the rank that goes
  // on: the lowest of those that wait, so that the others can meet it.
  std::optional<Rank> FindGoingOn(const Collective& origin) const;

 private:
  // The others that are in front; all, if none is known to be.
  std::vector<Rank> Find(const Collective& origin) const;
  bool HasMade(const Collective& origin, Rank member, Sequence call) const;
  // All others in front have come to a stop. `stopped`: those that wait for calls; all that are
  // found are added.
  bool HasStopped(const Collective& origin, std::vector<Rank>& stopped) const;
  bool HasStopped(const Collective& origin, Rank member, std::vector<Rank>& stopped) const;

  const SessionState& session_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_LIFECYCLE_FRONT_H_
