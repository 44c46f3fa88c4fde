#include "ffi/protocol/session/peer_report.h"

#include <algorithm>
#include <set>

namespace optireduce {
namespace {

// Calls of the collective that this rank has begun and the member has not.
std::uint32_t CallsBehind(const Collective& collective, MemberIndex member) {
  if (!collective.submitted) return 0;
  const auto& newest = collective.newest_call[member.index()];
  if (!newest) return 1;
  const std::uint32_t begun = collective.submitted->value();
  return begun - std::min(begun, newest->sequence.value());
}

// Every other member sends contributions to the owner of a shard. To another rank nothing shows
// their calls.
bool ShowsCalls(const Collective& collective) {
  return collective.layout.Shard(collective.self).bytes > 0 &&
         collective.submitted != std::optional(kFinalDrain);
}

}  // namespace

std::vector<PeerReport> MakePeerReports(const SessionState& session) {
  std::vector<std::uint32_t> behind(session.peers.size());
  std::set<const Collective*> replaced;
  session.directory.ForEach(
      [&](const Collective& collective) { replaced.insert(collective.predecessor); });
  session.directory.ForEach([&](const Collective& collective) {
    if (replaced.contains(&collective) || !ShowsCalls(collective)) return;
    for (const MemberIndex member : collective.others) {
      std::uint32_t& most = behind[collective.RankOf(member).index()];
      most = std::max(most, CallsBehind(collective, member));
    }
  });
  std::vector<PeerReport> reports;
  for (const Peer& peer : session.peers.others()) {
    const bool heard = peer.last_heard > Instant{};
    reports.push_back({.rank = peer.rank,
                       .state = peer.state(),
                       .last_heard = heard ? std::optional(peer.last_heard) : std::nullopt,
                       .round_trip_time = peer.flow.round_trip_time(),
                       .traffic = peer.traffic,
                       .calls_behind = peer.gone() ? 0 : behind[peer.rank.index()]});
  }
  return reports;
}

void AddReport(PeerReport& sum, const PeerReport& of_lane) {
  sum.state = std::max(sum.state, of_lane.state);
  sum.last_heard = std::max(sum.last_heard, of_lane.last_heard);
  sum.round_trip_time = std::max(sum.round_trip_time, of_lane.round_trip_time);
  sum.traffic.bytes_sent += of_lane.traffic.bytes_sent;
  sum.traffic.bytes_received += of_lane.traffic.bytes_received;
  sum.traffic.segments_sent += of_lane.traffic.segments_sent;
  sum.traffic.segments_retransmitted += of_lane.traffic.segments_retransmitted;
  sum.traffic.segments_received += of_lane.traffic.segments_received;
  sum.traffic.segments_late += of_lane.traffic.segments_late;
  sum.calls_behind = std::max(sum.calls_behind, of_lane.calls_behind);
}

}  // namespace optireduce
