#include "ffi/protocol/session/lag_monitor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace optireduce {
namespace {

// Chosen: the least that tells a peer that has nothing to say from one that does not answer.
constexpr int kSignsPerPatience = 2;

// The position of the oldest call of the collective; the number of calls if there is none.
std::size_t OldestOf(CollectiveId collective, const Ring<CallId>& calls) {
  std::size_t oldest = calls.size();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const bool same = calls[i].collective == collective;
    if (same && (oldest == calls.size() || calls[i] < calls[oldest])) oldest = i;
  }
  return oldest;
}

}  // namespace

template <typename Visit>
void LagMonitor::ForEachLagging(CallId call, Visit visit) const {
  OpenCall* const open = calls_.Find(call);
  if (open == nullptr || !open->exchange.WaitsForLag()) return;
  const Collective& collective = open->exchange.collective();
  for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective.self || !collective.deferred->Lags(member, call.sequence)) continue;
    visit(open->exchange, member);
  }
}

std::vector<Verdict> LagMonitor::HandleTimeout(Instant now) {
  std::erase_if(lagging_, [&](CallId call) {
    const OpenCall* const open = calls_.Find(call);
    return open == nullptr || !open->exchange.WaitsForLag();
  });
  for (const CallId call : lagging_) {
    ForEachLagging(call, [&](Exchange& exchange, MemberIndex member) {
      Peer& peer = peers_.Touch(exchange.collective().RankOf(member));
      const Duration patience = peer.Patience(options_.peer_timeout);
      if (peer.AwaitsAnswer() && peer.Silence(now) >= patience) {
        exchange.collective().deferred->Suspend(member);
      } else if (!peer.AwaitsAnswer() && peer.Silence(now) >= patience / kSignsPerPatience &&
                 peer.control.empty()) {
        peer.control.push_back({.kind = DatagramKind::kProbe});
      }
    });
  }
  std::vector<Verdict> verdicts;
  for (const CallId call : lagging_) verdicts.push_back({.call = call});
  return verdicts;
}

Instant LagMonitor::timeout() const {
  Instant at = kNever;
  for (const CallId call : lagging_) {
    ForEachLagging(call, [&](const Exchange& exchange, MemberIndex member) {
      const Peer& peer = *peers_[exchange.collective().RankOf(member)];
      const Duration patience = peer.Patience(options_.peer_timeout);
      const bool asking = !peer.AwaitsAnswer() && !peer.control.empty();
      if (asking) return;
      at = std::min(at, peer.AwaitsAnswer() ? SaturatingAdd(peer.asked, patience)
                                            : peer.last_heard + patience / kSignsPerPatience);
    });
  }
  return at;
}

bool LagMonitor::PutFirst(Rank to) {
  for (const CallId lagging : lagging_) {
    const OpenCall* const open = calls_.Find(lagging);
    if (open == nullptr || !open->exchange.WaitsForLag()) continue;
    const auto member = open->exchange.collective().MemberOf(to);
    if (!member || !open->exchange.collective().deferred->Lags(*member, lagging.sequence)) continue;
    Ring<CallId>& calls = peers_[to]->backlog;
    const std::size_t oldest = OldestOf(lagging.collective, calls);
    if (oldest == calls.size()) continue;
    std::swap(calls[oldest], calls.front());
    return true;
  }
  return false;
}

bool LagMonitor::OthersArePast(const Exchange& exchange) const {
  const Collective& collective = exchange.collective();
  std::vector<bool> with_it(collective.layout.members());
  bool past = false;
  bool all = true;
  for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective.self || peers_[collective.RankOf(member)]->gone()) continue;
    if (collective.attendance.Absent(member)) continue;
    with_it[m] = !collective.attendance.Past(member, exchange.call().sequence);
    all = all && !with_it[m];
    past = past || !with_it[m];
  }
  return past && (all || exchange.all_gather().SparesAll(with_it));
}

std::vector<Verdict> LagMonitor::RecordAttendance(Instant now, Collective& collective,
                                                  MemberIndex from, Sequence call, bool past) {
  std::vector<Verdict> verdicts;
  if (!NeedsNoMember(collective.spec)) return verdicts;
  Attendance& attendance = collective.attendance;
  const bool changes = past ? attendance.RecordPast(from, call) : attendance.Record(from, call);
  if (!changes) return verdicts;
  calls_.ForEach(collective.id, [&](CallId open, OpenCall& active) {
    Exchange& exchange = active.exchange;
    const bool under_way = exchange.program().running();
    const bool touched = past ? open.sequence <= call : open.sequence < call;
    if (!touched || !under_way || !OthersArePast(exchange)) return;
    exchange.Pass(now);
    verdicts.push_back({.call = open});
  });
  return verdicts;
}

void LagMonitor::AnswerPast(Collective& collective, MemberIndex to, Sequence call) {
  if (!NeedsNoMember(collective.spec)) return;
  Peer& peer = peers_.Touch(collective.RankOf(to));
  if (peer.gone() || !collective.attendance.AsksInVain(to, call)) return;
  const SentInfo answer{.kind = DatagramKind::kAnnouncement,
                        .flags = kFlagPast,
                        .call = {.collective = collective.id, .sequence = call},
                        .segment = {}};
  for (std::size_t i = 0; i < peer.control.size(); ++i) {
    SentInfo& queued = peer.control[i];
    const bool older = queued.flags == kFlagPast && queued.kind == answer.kind &&
                       queued.call.collective == collective.id;
    if (!older) continue;
    queued = answer;
    return;
  }
  peer.control.push_back(answer);
}

void LagMonitor::HandleSubmitted(Instant now, Exchange& exchange) {
  const CollectiveSpec& spec = exchange.collective().spec;
  if (!NeedsNoMember(spec) || !OthersArePast(exchange)) return;
  exchange.Pass(now);
  for (const Rank member : spec.members) {
    if (member == options_.rank) continue;
    Peer& peer = peers_.Touch(member);
    if (peer.gone() || !peer.control.empty()) continue;
    peer.control.push_back(
        {.kind = DatagramKind::kWaiting, .call = exchange.call(), .segment = {}});
  }
}

}  // namespace optireduce
