// The state of a peer for a user: what `python -m jax_optireduce status` shows of it.

#ifndef FFI_PROTOCOL_SESSION_PEER_REPORT_H_
#define FFI_PROTOCOL_SESSION_PEER_REPORT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/peers/peer.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/stats.h"

namespace optireduce {

struct PeerReport {
  Rank rank;
  PeerState state = PeerState::kAlive;
  std::optional<Instant> last_heard;  // nothing if it was never heard
  std::optional<Duration> round_trip_time;
  PeerTraffic traffic;
  // Calls that this rank has begun and the peer has not, in the collective where they are most. A
  // peer that has made no call of a collective is one call behind in it: its calls may begin with
  // any number.
  std::uint32_t calls_behind = 0;
};

std::vector<PeerReport> MakePeerReports(const SessionState& session);

// The report of a peer with several lanes: the sums of the traffic, and else the worse of two,
// but the newest sign of life.
void AddReport(PeerReport& sum, const PeerReport& of_lane);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_PEER_REPORT_H_
