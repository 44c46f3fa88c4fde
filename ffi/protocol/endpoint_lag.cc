// Ranks that are behind, where late data is carried: calls that wait for peers that are too far
// behind. A peer that answers is waited for; one that does not is left behind, until it has caught
// up. And where it is dropped: this rank is behind, and passes what all others are past.

#include <algorithm>
#include <vector>

#include "ffi/protocol/endpoint_impl.h"

namespace optireduce {
namespace {

// Chosen: the least that tells a peer that has nothing to say from one that does not answer.
constexpr int kSignsPerPatience = 2;

}  // namespace

void Endpoint::Impl::WatchLagging(Instant now) {
  std::erase_if(lagging_, [&](CallId call) {
    auto* const open = calls_.Find(call);
    return open == nullptr || !open->exchange.WaitsForLag();
  });
  const std::vector<CallId> calls(lagging_.begin(), lagging_.end());
  for (const CallId call : calls) {
    auto* const open = calls_.Find(call);
    if (open == nullptr) continue;
    OpenCall& active = *open;
    const Collective& collective = active.exchange.collective();
    for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
      const MemberIndex member(m);
      if (member == collective.self || !active.exchange.WaitsForLagOf(member)) continue;
      Peer& other = peer(collective.RankOf(member));
      const Duration patience = other.Patience(options_.peer_timeout);
      if (other.Owes() && other.Silence(now) >= patience) {
        active.exchange.Suspend(member);
      } else if (!other.Owes() && other.Silence(now) >= patience / kSignsPerPatience &&
                 other.control.empty()) {
        other.control.push_back({.kind = DatagramKind::kProbe});
      }
    }
    FinishIfComplete(now, active);
  }
}

Instant Endpoint::Impl::LagTimeout() const {
  Instant at = kNever;
  for (const CallId call : lagging_) {
    auto* const open = calls_.Find(call);
    if (open == nullptr || !open->exchange.WaitsForLag()) continue;
    const Collective& collective = open->exchange.collective();
    for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
      const MemberIndex member(m);
      if (member == collective.self || !open->exchange.WaitsForLagOf(member)) continue;
      const Peer& other = peer(collective.RankOf(member));
      const Duration patience = other.Patience(options_.peer_timeout);
      const bool asking = !other.Owes() && !other.control.empty();
      if (asking) continue;
      at = std::min(at, other.Owes() ? SaturatingAdd(other.asked, patience)
                                     : other.last_heard + patience / kSignsPerPatience);
    }
  }
  return at;
}

bool Endpoint::Impl::LagComesFirst(Rank to) {
  if (lagging_.empty()) return false;
  Ring<CallId>& calls = peers_[to]->backlog;
  for (const CallId lagging : lagging_) {
    auto* const open = calls_.Find(lagging);
    if (open == nullptr || !open->exchange.WaitsForLag()) continue;
    const auto member = open->exchange.collective().MemberOf(to);
    if (!member || !open->exchange.WaitsForLagOf(*member)) continue;
    std::size_t oldest = calls.size();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const bool same = calls[i].collective == lagging.collective;
      if (same && (oldest == calls.size() || calls[i] < calls[oldest])) oldest = i;
    }
    if (oldest == calls.size()) continue;
    std::swap(calls[oldest], calls.front());
    return true;
  }
  return false;
}

void Endpoint::Impl::NoteAttendance(Instant now, Collective& collective, MemberIndex from,
                                    Sequence call) {
  if (!Drops(collective.spec) || !collective.attendance.Note(from, call)) return;
  std::vector<CallId> passed;
  calls_.ForEach(collective.id, [&](CallId open, OpenCall& active) {
    const Exchange& exchange = active.exchange;
    const bool ends = open.sequence < call && exchange.submitted() && !exchange.finished();
    if (ends && PassIfOthersHave(now, collective, active)) passed.push_back(open);
  });
  for (const CallId open : passed) FinishIfComplete(now, calls_.At(open));
}

bool Endpoint::Impl::PassIfOthersHave(Instant now, const Collective& collective, OpenCall& active) {
  if (!Drops(collective.spec)) return false;
  const Sequence call = active.exchange.call().sequence;
  bool passed = false;
  for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective.self || peers_[collective.RankOf(member).index()]->gone()) continue;
    if (collective.attendance.Absent(member)) continue;
    if (!collective.attendance.Past(member, call)) return false;
    passed = true;
  }
  if (passed) active.exchange.Pass(now);
  return passed;
}

void Endpoint::Impl::TellPosition(const Collective& collective, CallId call) {
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || peer(member).gone() || !peer(member).control.empty()) continue;
    peer(member).control.push_back(
        {.kind = DatagramKind::kAnnouncement, .flags = kFlagWaiting, .call = call, .segment = {}});
  }
}

}  // namespace optireduce
