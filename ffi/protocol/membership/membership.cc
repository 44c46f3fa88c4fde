#include "ffi/protocol/membership/membership.h"

#include <chrono>
#include <utility>

#include "ffi/base/check.h"

namespace optireduce {
namespace {

// Chosen: a lost message costs that much time in which no call can begin; far above the round trip
// of a data center. With a short peer_timeout it is an eighth of it.
constexpr Duration kRetryInterval = std::chrono::milliseconds(50);
constexpr int kRetriesPerTimeout = 8;
// Chosen: in so many intervals a ballot comes to its end, also where a third of all is lost. A rank
// that would overtake it waits as long, and longer with every round.
constexpr int kPatience = 8;
constexpr std::uint32_t kPatienceRoundsMax = 16;
// Chosen: intervals in which a message comes and is answered, whichever way was cut off.
constexpr int kLastChance = 3;
// Chosen: two for those that hear others but are not heard, and as much again for the ballots.
constexpr int kAgreementTimeouts = 4;

View AllRanks(std::uint16_t world_size) {
  View view;
  for (std::uint16_t r = 0; r < world_size; ++r) view.members.emplace_back(r);
  return view;
}

// Keeps the time since when `holds` is true.
void KeepSince(std::optional<Instant>& since, Instant now, bool holds) {
  since = holds ? std::optional(since.value_or(now)) : std::nullopt;
}

}  // namespace

Membership::Membership(Rank self, std::uint16_t world_size, Duration peer_timeout,
                       std::uint16_t lanes, Slices slices, std::span<const Rank> absent)
    : self_(self),
      peer_timeout_(peer_timeout),
      retry_interval_(std::min(kRetryInterval, peer_timeout / kRetriesPerTimeout)),
      last_chance_(retry_interval_ * kLastChance),
      slices_(slices),
      view_(AllRanks(world_size)),
      connectivity_(self, world_size, lanes, peer_timeout, last_chance_, slices),
      paxos_(self, world_size),
      mailbox_(self, world_size, lanes) {
  OR_CHECK(peer_timeout > Duration::zero() && lanes > 0);
  if (absent.empty()) return;
  View present{.number = 1, .members = view_.members, .firsts = {}};
  std::erase_if(present.members,
                [&](Rank rank) { return std::ranges::find(absent, rank) != absent.end(); });
  earlier_.push_back(std::exchange(view_, std::move(present)));
  paxos_ = Paxos(self, view_.members.size());
  ++changes_;
}

// ---- Evidence.

bool Membership::InDoubt(Instant now) const {
  return paxos_.under_way() || connectivity_.InDoubt(now, view_.members);
}

bool Membership::NeedsDecision(Instant now) const {
  return paxos_.under_way() || connectivity_.IsParted(now, view_.members);
}

bool Membership::TryStart(std::uint32_t view, CallId call, CollectiveId among_members) {
  if (view != view_.number) return false;
  const auto entry = [&](CollectiveId bucket) {
    return std::ranges::lower_bound(newest_, bucket, {}, &CallId::collective);
  };
  const auto known = entry(call.collective);
  const bool begun = known != newest_.end() && known->collective == call.collective &&
                     known->sequence >= call.sequence;
  if (frozen() && !begun) return false;
  for (const CollectiveId bucket : {call.collective, among_members}) {
    const auto at = entry(bucket);
    if (at == newest_.end() || at->collective != bucket) {
      newest_.insert(at, {.collective = bucket, .sequence = call.sequence});
    } else {
      at->sequence = std::max(at->sequence, call.sequence);
    }
  }
  return true;
}

void Membership::Heard(Instant now, std::uint16_t lane, Rank rank) {
  if (!view_.Has(rank)) return mailbox_.QueueDecision(now, lane, rank);
  const bool known =
      in_doubt_since_ && connectivity_.HeardLately(now, *in_doubt_since_, lane, rank);
  if (!known) regained_at_ = now;
  if (connectivity_.Hear(now, lane, rank)) WakeAt(now);
}

void Membership::SetUnusable(Instant now, std::uint16_t lane, Rank rank, bool unusable) {
  connectivity_.SetUnusable(lane, rank, unusable);
  if (unusable) Suspect(now, lane, rank);
}

void Membership::Suspect(Instant now, std::uint16_t lane, Rank rank) {
  if (removed() || rank == self_ || !view_.Has(rank)) return;
  if (connectivity_.Suspect(lane, rank)) WakeAt(now);
}

void Membership::HandleSuspects(Instant now, Rank from, const std::vector<Rank>& suspects) {
  connectivity_.HandleReport(now, from, suspects);
  if (!suspects.empty() && !stuck_ && next_tick_ == kNever) next_tick_ = now;
}

// ---- Messages.

void Membership::SendAll(std::span<const Rank> ranks, MembershipKind kind) {
  ++changes_;
  mailbox_.QueueAll(ranks, kind);
}

std::optional<MembershipMailbox::Draft> Membership::Make(Instant now, Rank to,
                                                         MembershipKind kind) const {
  using Draft = MembershipMailbox::Draft;
  if (!IsDue(to, kind)) return std::nullopt;
  if (kind == MembershipKind::kDecision) {
    return Draft{{.kind = kind, .view = view_.number, .ranks = view_.members}, view_.firsts};
  }
  Draft draft{{.kind = kind, .view = view_.number, .ballot = paxos_.ballot()}};
  const bool accepted = paxos_.accepted_ballot().round > 0;
  if (kind == MembershipKind::kVote) draft.message.accepted = paxos_.accepted_ballot();
  if (kind == MembershipKind::kProposal || (kind == MembershipKind::kVote && accepted)) {
    draft.message.ranks = paxos_.accepted().members;
    draft.calls = paxos_.accepted().firsts;
  } else if (kind == MembershipKind::kVote) {
    draft.message.ranks = connectivity_.SuspectsAmong(view_.members);
    draft.calls = newest_;
  } else if (kind == MembershipKind::kStatus) {
    draft.message.ranks = connectivity_.SuspectsAmong(view_.members);
    draft.message.asks = InDoubt(now);
  }
  return draft;
}

bool Membership::IsDue(Rank to, MembershipKind kind) const {
  // A removed rank may be the only one left that knows the decision.
  if (kind == MembershipKind::kDecision) return view_.number > 0;
  if (removed() || !view_.Has(to)) return false;
  const bool for_coordinator = to == paxos_.ballot().coordinator;
  switch (kind) {
    case MembershipKind::kStatus:
      return true;
    case MembershipKind::kPrepare:
      return paxos_.coordinates() && !paxos_.proposed();
    case MembershipKind::kVote:
      return frozen() && for_coordinator;
    case MembershipKind::kProposal:
      return paxos_.coordinates() && paxos_.proposed();
    case MembershipKind::kAccepted:
      return paxos_.accepted_ballot() == paxos_.ballot() && for_coordinator;
    case MembershipKind::kDecision:
      break;
  }
  return false;
}

std::optional<Membership::Outgoing> Membership::Poll(Instant now, std::uint16_t lane,
                                                     std::span<std::byte> out) {
  return mailbox_.Poll(lane, out,
                       [&](Rank to, MembershipKind kind) { return Make(now, to, kind); });
}

bool Membership::Handle(Instant now, std::uint16_t lane, Rank from,
                        std::span<const std::byte> payload) {
  const auto world_size = mailbox_.world_size();
  auto part = ParseMembership(payload, world_size);
  if (!part || from.index() >= world_size || from == self_) return false;
  if (removed()) {
    // This may be the only rank left that knows the decision.
    if (part->view < view_.number) mailbox_.QueueDecision(now, lane, from);
    return true;
  }
  Heard(now, lane, from);
  if (part->kind == MembershipKind::kDecision) {
    if (part->view <= view_.number) return true;
    auto decision = mailbox_.Assemble(from, std::move(*part));
    return !decision || HandleDecision(now, std::move(*decision));
  }
  if (part->view != view_.number) {
    HandleOtherView(now, lane, from, part->view);
    return true;
  }
  const bool members = part->kind == MembershipKind::kProposal || part->accepted.round > 0;
  if (members && !std::ranges::includes(view_.members, part->ranks)) return false;
  if (!view_.Has(from)) return true;
  auto message = mailbox_.Assemble(from, std::move(*part));
  if (message) HandleMember(now, lane, from, std::move(*message));
  return true;
}

void Membership::HandleOtherView(Instant now, std::uint16_t lane, Rank from, std::uint32_t view) {
  if (view < view_.number) {
    mailbox_.QueueDecision(now, lane, from);
  } else {
    // It answers with the decision.
    mailbox_.Queue(lane, from, MembershipKind::kStatus);
  }
}

void Membership::HandleMember(Instant now, std::uint16_t lane, Rank from,
                              MembershipMessage message) {
  const Ballot& ballot = message.ballot;
  const Ballot before = paxos_.ballot();
  const bool coordinator = ballot.coordinator == from;
  const auto answer = [&](bool takes_part, MembershipKind kind) {
    mailbox_.Queue(lane, from, takes_part ? kind : MembershipKind::kStatus);
  };
  switch (message.kind) {
    case MembershipKind::kStatus:
      HandleStatus(now, lane, from, message);
      break;
    case MembershipKind::kPrepare:
      if (coordinator) answer(paxos_.Prepare(now, ballot), MembershipKind::kVote);
      break;
    case MembershipKind::kVote:
      HandleVote(now, from, std::move(message));
      break;
    case MembershipKind::kProposal:
      if (coordinator) {
        answer(paxos_.Accept(now, ballot, {std::move(message.ranks), std::move(message.calls)}),
               MembershipKind::kAccepted);
      }
      break;
    case MembershipKind::kAccepted:
      if (!paxos_.IsOwn(ballot) || !paxos_.proposed()) break;
      paxos_.AddAcceptance(from);
      DecideIfAccepted(now);
      break;
    case MembershipKind::kDecision:
      break;
  }
  if (paxos_.ballot() > before) WakeAt(now);
}

void Membership::HandleStatus(Instant now, std::uint16_t lane, Rank from,
                              const MembershipMessage& message) {
  HandleSuspects(now, from, message.ranks);
  // This rank knows its own ballots best.
  if (message.ballot.coordinator != self_) paxos_.Promise(now, message.ballot);
  if (message.asks && !InDoubt(now)) mailbox_.Queue(lane, from, MembershipKind::kStatus);
}

void Membership::HandleVote(Instant now, Rank from, MembershipMessage message) {
  if (!paxos_.IsOwn(message.ballot)) return;
  if (message.accepted.round == 0) HandleSuspects(now, from, message.ranks);
  paxos_.AddVote(from, {.accepted = message.accepted,
                        .proposal = {std::move(message.ranks), std::move(message.calls)}});
  ProposeIfVoted(now);
}

bool Membership::HandleDecision(Instant now, MembershipMessage message) {
  View next{.number = message.view,
            .members = std::move(message.ranks),
            .firsts = std::move(message.calls)};
  // Its members have voted in the view before, and so know it.
  if (next.Has(self_) && next.number != view_.number + 1) return false;
  if (!std::ranges::includes(view_.members, next.members)) return false;
  Begin(now, std::move(next));
  return true;
}

// ---- The agreement: when a ballot begins, what it proposes, and when it is decided.

void Membership::HandleTimeout(Instant now) {
  if (now < next_tick_) return;
  next_tick_ = kNever;
  if (removed()) return;
  KeepSince(in_doubt_since_, now, InDoubt(now));
  if (!in_doubt_since_) {
    needs_decision_since_.reset();
    majority_since_.reset();
    minority_since_.reset();
    return SetStuck(false);
  }
  next_tick_ = now + retry_interval_;
  connectivity_.SuspectSilent(now, *in_doubt_since_, view_.members);
  KeepSince(needs_decision_since_, now, NeedsDecision(now));
  UpdateStuck(now);
  SendAll(view_.members, MembershipKind::kStatus);
  // Nothing can be decided until one of the others is heard again. Ranks behind an unusable path
  // are heard all the time, and decide by the reports of this rank.
  const bool reports = connectivity_.HearsUnusable(now, view_.members);
  if (stuck_ && !majority_since_ && !reports) next_tick_ = kNever;
  if (paxos_.coordinates()) {
    std::vector<Rank> missing = view_.members;
    std::erase_if(missing, [&](Rank member) { return paxos_.HasAnswered(member); });
    SendAll(missing, paxos_.proposed() ? MembershipKind::kProposal : MembershipKind::kPrepare);
    ProposeIfVoted(now);
  } else if (OwnTurn(now)) {
    Bid(now);
  }
}

void Membership::UpdateStuck(Instant now) {
  const bool majority = paxos_.IsMajority(Connected(now));
  KeepSince(majority_since_, now, majority);
  KeepSince(minority_since_, now, !majority);
  const bool minority =
      minority_since_ && now - *minority_since_ >= peer_timeout_ / Connectivity::kAnswersPerTimeout;
  SetStuck(minority || (needs_decision_since_ &&
                        now - *needs_decision_since_ >= peer_timeout_ * kAgreementTimeouts));
}

void Membership::SetStuck(bool stuck) {
  if (std::exchange(stuck_, stuck) != stuck) ++changes_;
}

bool Membership::OwnTurn(Instant now) const {
  if (!needs_decision_since_ || !majority_since_) return false;
  // The lowest rank goes first, of those that are not about to be removed with their slice; and a
  // coordinator that has begun has time to come to an end.
  const Ballot& ballot = paxos_.ballot();
  const std::vector<Rank> whole = connectivity_.WholeReached(now, view_.members);
  const auto turn = [&](Rank rank) {
    return std::pair(!std::ranges::binary_search(whole, rank), rank);
  };
  std::int64_t before = std::ranges::count_if(view_.members, [&](Rank rank) {
    return turn(rank) < turn(self_) && connectivity_.Reaches(now, rank);
  });
  if (paxos_.under_way() && view_.Has(ballot.coordinator) &&
      connectivity_.Reaches(now, ballot.coordinator)) {
    ++before;
  }
  const Duration patience =
      retry_interval_ * kPatience * (1 + std::min(ballot.round, kPatienceRoundsMax));
  const Instant since = std::max({*needs_decision_since_, *majority_since_, paxos_.ballot_at()});
  if (now - since < last_chance_ + patience * before) return false;
  // One of two that do not reach each other on one lane may be silent there for all: the others
  // find that out when they ask it.
  return now - *needs_decision_since_ >= peer_timeout_ + last_chance_ ||
         !connectivity_.LacksEvidence(now, view_.members);
}

void Membership::Bid(Instant now) {
  WakeAt(now);
  paxos_.Bid(now, newest_);
  SendAll(view_.members, MembershipKind::kPrepare);
  ProposeIfVoted(now);
}

bool Membership::HasVotesOfAll(Instant now) const {
  // A rank that was cut off hears the others again one after the other.
  const bool settled =
      majority_since_ && now - std::max(*majority_since_, regained_at_) >= last_chance_;
  return std::ranges::all_of(view_.members, [&](Rank member) {
    const bool awaited =
        !settled || connectivity_.Reaches(now, member) || connectivity_.IsPartlySilent(now, member);
    return !awaited || paxos_.HasAnswered(member);
  });
}

void Membership::ProposeIfVoted(Instant now) {
  if (!paxos_.coordinates() || paxos_.proposed()) return;
  if (!paxos_.HasVotes() || !HasVotesOfAll(now)) return;
  // An accepted proposal may have been decided.
  std::optional<Proposal> proposal = paxos_.FindAccepted();
  if (!proposal) {
    proposal = {.members = connectivity_.Agreeable(now, paxos_.Voters()), .firsts = view_.firsts};
    if (proposal->members != view_.members) proposal->firsts = paxos_.FirstsAfterVotes();
  }
  if (!paxos_.IsMajority(proposal->members.size())) return;
  paxos_.Propose(std::move(*proposal));
  SendAll(view_.members, MembershipKind::kProposal);
  DecideIfAccepted(now);
}

void Membership::DecideIfAccepted(Instant now) {
  if (!paxos_.IsDecided()) return;
  const std::vector<Rank> voters = view_.members;
  const auto& [members, firsts] = paxos_.accepted();
  Begin(now, {.number = view_.number + 1, .members = members, .firsts = firsts});
  SendAll(voters, MembershipKind::kDecision);
}

void Membership::Begin(Instant now, View view) {
  std::swap(view_, view);
  if (removed()) lost_with_ = connectivity_.SuspectedByAny(slices_.SliceOf(self_));
  if (view.members != view_.members) earlier_.push_back(std::move(view));
  ++changes_;
  stuck_ = false;
  paxos_ = Paxos(self_, view_.members.size());
  connectivity_.ClearReports();
  mailbox_.Clear();
  in_doubt_since_.reset();
  needs_decision_since_.reset();
  majority_since_.reset();
  minority_since_.reset();
  // Some of its members may be silent already.
  next_tick_ = removed() ? kNever : now;
}

}  // namespace optireduce
