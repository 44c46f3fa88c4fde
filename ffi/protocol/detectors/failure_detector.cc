#include "ffi/protocol/detectors/failure_detector.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ffi/protocol/detectors/wait_monitor.h"
#include "ffi/protocol/session/error_text.h"

namespace optireduce {
namespace {

// Advice to the user about a peer that is gone.
std::string AdviceFor(const Peer& gone) {
  if (gone.left()) return ". Every rank must make the same number of calls";
  if (gone.black_hole) return "";
  return ". Is its process alive, and can UDP pass both ways?";
}

std::string NameOf(Rank rank) { return "rank " + std::to_string(rank.value()); }

}  // namespace

// ---- The states.

void FailureDetector::Heard(Instant now, Peer& peer) {
  peer.Heard(now, session_.options.peer_timeout);
  // A sign of life of a peer to which data does not pass changes nothing.
  if (!peer.silent() || peer.black_hole) return;
  transmitter_.RecordIncastOfPeers();
  peer.SetState(PeerState::kAlive, "");
}

bool FailureDetector::MarkSilent(Rank rank, std::string why) {
  Peer& peer = session_.peers.Touch(rank);
  if (peer.silent()) return false;
  peer.SetState(membership_.in_use() ? PeerState::kSuspected : PeerState::kSilent, std::move(why));
  return true;
}

void FailureDetector::MarkLeft(Rank rank, std::string_view why) {
  session_.peers.Touch(rank).SetState(PeerState::kLeft,
                                      NameOf(rank) + " has left: " + std::string(why));
}

void FailureDetector::MarkRemoved(Rank rank) {
  Peer& peer = session_.peers.Touch(rank);
  std::string why = "this rank was removed from the session";
  if (!membership_.removed()) {
    why = NameOf(rank) + " was removed from the session" +
          (session_.options.ranks_per_slice > 1 ? " with its slice" : "") + ", and " +
          std::to_string(membership_.view().members.size()) + " ranks go on without it";
    if (const std::string path = DescribeNarrowPath(rank); !path.empty()) why += ": " + path;
  }
  peer.SetState(peer.left() ? PeerState::kRemovedAfterLeaving : PeerState::kRemoved,
                std::move(why));
}

std::vector<Rank> FailureDetector::GiveUpSuspects() {
  std::vector<Rank> suspects;
  for (Peer& peer : session_.peers.others()) {
    if (peer.state() != PeerState::kSuspected) continue;
    peer.SetState(PeerState::kSilent, peer.why());
    suspects.push_back(peer.rank);
  }
  return suspects;
}

// ---- Silence.

std::string FailureDetector::WhySilent(Rank rank) const {
  return NameOf(rank) + " has been silent for more than " +
         RoundedSeconds(session_.options.peer_timeout) + " (peer_timeout_s)" +
         OnLane(session_.options);
}

void FailureDetector::RecordUnanswered(Rank rank) {
  if (session_.peers[rank]->flow.unanswered()) unanswered_.insert(rank);
}

std::vector<Rank> FailureDetector::FindUnanswered(Instant now) {
  std::erase_if(unanswered_, [&](Rank rank) { return !session_.peers[rank]->flow.unanswered(); });
  std::vector<Rank> ranks;
  std::ranges::copy_if(unanswered_, std::back_inserter(ranks), [&](Rank rank) {
    const Peer& peer = *session_.peers[rank];
    return !peer.gone() && peer.Silence(now) >= session_.options.peer_timeout;
  });
  return ranks;
}

Duration FailureDetector::SilenceSince(Instant now, Instant since, Rank member) const {
  return now - std::max(session_.peers[member]->last_heard, since);
}

std::vector<Rank> FailureDetector::FindSilent(Instant now, const CollectiveSpec& spec,
                                              Instant since) {
  const Duration timeout = session_.options.peer_timeout;
  std::vector<Rank> silent;
  for (const Rank member : spec.members) {
    if (member == session_.options.rank) continue;
    const Duration silence = SilenceSince(now, since, member);
    if (silence >= timeout) {
      silent.push_back(member);
      if (!membership_.Survives(spec)) return silent;
    } else if (silence >= timeout / kSignsPerTimeout && !session_.peers[member]->probing()) {
      session_.peers.Touch(member).control.push_back({.kind = DatagramKind::kProbe});
    }
  }
  return silent;
}

Status FailureDetector::WhyAbandoned(Instant now, const Exchange& exchange) const {
  const CollectiveSpec& spec = exchange.collective().spec;
  // Whether others continue without a member is agreed.
  if (membership_.Survives(spec)) return {};
  for (const Rank member : spec.members) {
    if (member == session_.options.rank || SilenceSince(now, exchange.program().submitted_at(),
                                                        member) < session_.options.peer_timeout) {
      continue;
    }
    return {StatusCode::kUnavailable,
            "jax_optireduce: " + session_.peers[member]->why() + "; others wait for it in " +
                Describe(spec, exchange.call().sequence),
            {.cause = Cause::kPeerLost, .ranks = {member}}};
  }
  return {};
}

const Peer* FailureDetector::FindUnreachable(const Collective& collective,
                                             const Submission& submission) const {
  const CollectiveSpec& spec = collective.spec;
  if (NeedsNoMember(spec)) return nullptr;
  for (const Rank member : spec.members) {
    if (member == session_.options.rank || !session_.peers[member]->unreachable()) continue;
    const Peer& peer = *session_.peers[member];
    // A member that has left in good order has made this call, and everything of it is here.
    const bool served = RetainsLateData(spec) && peer.left();
    if (!served ||
        !session_.calls.HasCalled(collective, submission.sequence, submission.drain, member)) {
      return &peer;
    }
  }
  return nullptr;
}

// ---- Paths that lose long datagrams.

FailureDetector::PathChange FailureDetector::CheckPath(Rank rank) {
  Peer& peer = *session_.peers[rank];
  const std::optional<BlackHole> hole = peer.flow.lengths().Find(session_.options.peer_timeout);
  PathChange path{.changed = peer.black_hole != hole.has_value(), .why = {}};
  peer.black_hole = hole.has_value();
  if (!hole || peer.left() || peer.removed()) return path;
  path.why = DescribeHole(*hole, "", rank);
  return path;
}

std::string FailureDetector::DescribeHole(const BlackHole& hole, const std::string& from,
                                          Rank to) const {
  return "datagrams of " + std::to_string(hole.lost_bytes) + " bytes " + from + "to " + NameOf(to) +
         OnLane(session_.options) + " do not arrive, those of " +
         std::to_string(hole.delivered_bytes) +
         " bytes do: a link on the way has a smaller MTU. Mend it, or start the job again: init "
         "takes the longest datagrams that pass";
}

void FailureDetector::RecordNarrowPath(const Header& header) {
  const std::uint32_t lengths = header.segment.value();
  const bool known = header.sender_info < session_.options.world_size;
  session_.peers.Touch(header.source).narrow_path = {
      .to = Rank(header.sender_info),
      .lost_bytes = static_cast<std::uint16_t>(known ? lengths >> 16 : 0),
      .delivered_bytes = static_cast<std::uint16_t>(lengths)};
}

std::string FailureDetector::DescribeNarrowPath(Rank rank) const {
  const Rank self = session_.options.rank;
  // An earlier removal may have been for the same path. A removed rank counts all others as
  // removed.
  const auto gone = [&](Rank other) {
    return other != self && session_.peers[other]->removed() && !membership_.removed();
  };
  for (const Peer& peer : session_.peers.others()) {
    const Peer::NarrowPath& theirs = peer.narrow_path;
    if (theirs.lost_bytes > 0 && (theirs.to == rank || (peer.rank == rank && !gone(theirs.to)))) {
      return DescribeHole(
          {.lost_bytes = theirs.lost_bytes, .delivered_bytes = theirs.delivered_bytes},
          "from " + NameOf(peer.rank) + " ", theirs.to);
    }
    const auto hole = peer.flow.lengths().Find(session_.options.peer_timeout);
    const bool own = rank == self && !gone(peer.rank);
    if (hole && (peer.rank == rank || own)) {
      return DescribeHole(*hole, "from " + NameOf(self) + " ", peer.rank);
    }
  }
  return "";
}

bool FailureDetector::NeedsAllMembers(const Exchange& exchange) const {
  const CollectiveSpec& spec = exchange.collective().spec;
  return exchange.program().submitted() && !membership_.Survives(spec) && !NeedsNoMember(spec);
}

std::vector<Verdict> FailureDetector::FindUnserved(Rank rank, const std::string& why) {
  std::vector<Verdict> verdicts;
  std::vector<Verdict> over;
  for (auto& [call, open] : session_.calls) {
    Exchange& exchange = open.exchange;
    const CollectiveSpec& spec = exchange.collective().spec;
    const auto member = exchange.collective().MemberOf(rank);
    if (!member || !NeedsAllMembers(exchange)) continue;
    const bool served = exchange.sender().Served(*member);
    const Status error(
        StatusCode::kUnavailable,
        "jax_optireduce: " + why + "; it is needed in " + Describe(spec, call.sequence),
        {.cause = Cause::kPathTooSmall, .ranks = {rank}});
    if (!exchange.program().finished()) {
      if (!served || exchange.Needs(*member)) verdicts.push_back({.call = call, .why = error});
    } else if (!served) {
      // The call is over here, but not at the peer.
      over.push_back({.call = call, .why = error});
      exchange.sender().DropPeer(*member);
    }
  }
  std::ranges::move(over, std::back_inserter(verdicts));
  return verdicts;
}

// ---- The end of a peer.

FailureDetector::Loss FailureDetector::DropPeerIn(Instant now, OpenCall& open, MemberIndex gone) {
  Exchange& exchange = open.exchange;
  const Collective& collective = exchange.collective();
  const Peer& peer = *session_.peers[collective.RankOf(gone)];
  const bool survives = membership_.Survives(collective.spec);
  open.queued[gone.index()] = false;
  // A drain continues among the members that are left, once they agree.
  const bool drains = survives && exchange.policy().drains() && exchange.program().submitted();
  if (drains && (exchange.call().sequence == kFinalDrain || peer.removed())) {
    exchange.Exclude(now, gone);
    transmitter_.QueueAll(open);
    return Loss::kNone;
  }
  const bool needs = NeedsGone(exchange, peer, gone);
  exchange.sender().DropPeer(gone);
  if (!needs) return Loss::kNone;
  return drains ? Loss::kUndecided : Loss::kFatal;
}

bool FailureDetector::NeedsGone(const Exchange& exchange, const Peer& peer,
                                MemberIndex gone) const {
  if (exchange.waiting()) {
    if (!peer.left()) return exchange.WaitsFor(gone);
    // A member that has left in good order has what this rank has contributed to its calls. Others
    // may have its sums and forward them; WhyAbandoned() bounds how long this rank waits for them.
    return exchange.Needs(gone) && !exchange.MayBeRelayed(gone);
  }
  if (!exchange.Needs(gone)) return false;
  const Collective& collective = exchange.collective();
  if (!collective.deferred || membership_.Survives(collective.spec)) return false;
  // A member that has left in good order has sent everything for the calls that it has made.
  return exchange.program().running() && !(peer.left() && exchange.heard(gone));
}

bool FailureDetector::OnlyOpenedBy(const Peer& gone, const Exchange& exchange) {
  const Collective& collective = exchange.collective();
  // The data of a member that has left in good order counts in a call that this rank makes later.
  const bool counts = gone.left() && RetainsLateData(collective.spec);
  // Other members may have a part in its sums.
  const bool others = std::ranges::any_of(collective.others, [&](MemberIndex member) {
    return exchange.heard(member) && collective.RankOf(member) != gone.rank;
  });
  return exchange.program().uncalled() && !counts && !others &&
         exchange.reduce_scatter().sums().empty();
}

FailureDetector::PeerLoss FailureDetector::DropPeer(Instant now, Rank gone) {
  transmitter_.RecordIncastOfPeers();
  Peer& peer = session_.peers.Touch(gone);
  if (peer.gone()) {
    peer.DropQueued();
    admission_.Forget(gone);
  }
  PeerLoss lost = DropPeerInCalls(now, peer);
  session_.directory.ForEach([&](Collective& collective) {
    const auto member = collective.MemberOf(gone);
    if (member && collective.deferred && !Keeps(collective.spec, peer)) {
      collective.deferred->DropPeer(*member);
    }
  });
  return lost;
}

bool FailureDetector::Keeps(const CollectiveSpec& spec, const Peer& peer) const {
  // The members agree on calls that survive a peer before these are without it.
  return membership_.Survives(spec) && !peer.gone();
}

FailureDetector::PeerLoss FailureDetector::DropPeerInCalls(Instant now, const Peer& peer) {
  const std::string waits =
      "jax_optireduce: " + peer.why() + "; " + NameOf(session_.options.rank) + " waits for it in ";
  PeerLoss lost;
  std::vector<Verdict> over;
  for (auto& [call, open] : session_.calls) {
    if (peer.gone() && OnlyOpenedBy(peer, open.exchange)) {
      lost.verdicts.push_back({.call = call, .discard = true});
      continue;
    }
    const CollectiveSpec& spec = open.exchange.collective().spec;
    const std::optional<MemberIndex> member = MemberOf(spec, peer.rank);
    if (!member || Keeps(spec, peer)) continue;
    const Loss loss = DropPeerIn(now, open, *member);
    if (loss == Loss::kFatal) {
      lost.verdicts.push_back(
          {.call = call,
           .why = {StatusCode::kUnavailable,
                   waits + Describe(spec, call.sequence) + AdviceFor(peer), peer.blame()}});
    }
    lost.undecided = lost.undecided || loss == Loss::kUndecided;
    if (open.exchange.program().over()) over.push_back({.call = call});
  }
  std::ranges::move(over, std::back_inserter(lost.verdicts));
  return lost;
}

}  // namespace optireduce
