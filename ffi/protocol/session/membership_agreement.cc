// How the members agree: when a ballot begins, what it proposes, and when it is decided.

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "ffi/protocol/session/membership.h"

namespace optireduce {
namespace {

// Chosen: a lost message costs that much time in which no call can begin; far above the round trip
// of a data center. With a short peer_timeout it is an eighth of it.
constexpr Duration kRetryInterval = std::chrono::milliseconds(50);
constexpr int kRetriesPerTimeout = 8;
// Chosen: in so many intervals a ballot comes to its end, also where a third of all is lost; who
// would overtake it waits as long, and longer with every round.
constexpr int kPatience = 8;
constexpr std::uint32_t kPatienceRoundsMax = 16;
// Chosen: intervals in which a message comes and is answered, whichever way was cut off.
constexpr int kLastChance = 3;
// Chosen: two for those that hear others but are not heard, and as much again for the ballots.
constexpr int kAgreementTimeouts = 4;

}  // namespace

Duration Membership::RetryInterval() const {
  return std::min(kRetryInterval, peer_timeout_ / kRetriesPerTimeout);
}

Duration Membership::LastChance() const { return RetryInterval() * kLastChance; }

void Membership::HandleTimeout(Instant now) {
  if (now >= next_tick_) Tick(now);
}

void Membership::Tick(Instant now) {
  next_tick_ = kNever;
  if (removed()) return;
  if (!Concerned(now)) {
    concerned_since_.reset();
    convinced_since_.reset();
    majority_since_.reset();
    minority_since_.reset();
    SetStuck(false);
    return;
  }
  next_tick_ = now + RetryInterval();
  if (!concerned_since_) concerned_since_ = now;
  SuspectSilent(now);
  if (!Convinced(now)) {
    convinced_since_.reset();
  } else if (!convinced_since_) {
    convinced_since_ = now;
  }
  NoteStuck(now);
  DueTo(view_.members, MembershipKind::kStatus);
  // Nothing can be decided until one of the others is heard again.
  if (stuck_ && !Majority(Connected(now))) next_tick_ = kNever;
  if (bidding()) {
    std::vector<Rank> missing = view_.members;
    std::erase_if(missing, [&](Rank member) {
      return proposed_ ? acceptors_.contains(member) : votes_.contains(member);
    });
    DueTo(missing, proposed_ ? MembershipKind::kProposal : MembershipKind::kPrepare);
    ProposeIfVoted(now);
  } else if (OwnTurn(now)) {
    Bid(now);
  }
}

void Membership::SuspectSilent(Instant now) {
  for (const Rank member : view_.members) {
    if (member == self_) continue;
    for (Path& there : other(member).paths) {
      const Instant since = std::max(there.heard_at, *concerned_since_);
      if (now - since >= peer_timeout_) there.suspected = true;
    }
  }
}

void Membership::NoteStuck(Instant now) {
  const bool majority = Majority(Connected(now));
  auto& since = majority ? majority_since_ : minority_since_;
  if (!since) since = now;
  (majority ? minority_since_ : majority_since_).reset();
  const bool minority =
      minority_since_ && now - *minority_since_ >= peer_timeout_ / kMinorityPerTimeout;
  SetStuck(minority ||
           (convinced_since_ && now - *convinced_since_ >= peer_timeout_ * kAgreementTimeouts));
}

void Membership::SetStuck(bool stuck) {
  if (std::exchange(stuck_, stuck) != stuck) ++changes_;
}

bool Membership::OwnTurn(Instant now) const {
  if (!convinced_since_ || !majority_since_) return false;
  // The lowest goes first, and a coordinator that has begun is given time to come to an end.
  std::int64_t before = std::ranges::count_if(
      view_.members, [&](Rank rank) { return rank < self_ && Reaches(now, rank); });
  if (ballot_.round > 0 && Reaches(now, ballot_.coordinator)) ++before;
  const Duration retry = RetryInterval();
  const Duration patience = retry * kPatience * (1 + std::min(ballot_.round, kPatienceRoundsMax));
  // Those who are suspected, or suspect, get a last chance to say otherwise.
  const Instant since = std::max({*convinced_since_, *majority_since_, ballot_at_});
  if (now - since < LastChance() + patience * before) return false;
  // Of two that do not reach each other on one lane, one may be silent there for all: the others
  // find that out when they ask it.
  return now - *convinced_since_ >= peer_timeout_ + LastChance() || !LacksEvidence(now);
}

void Membership::Promise(Instant now, const Ballot& ballot) {
  if (ballot <= ballot_) return;
  ballot_ = ballot;
  ballot_at_ = now;
  votes_.clear();
  acceptors_.clear();
  proposed_ = false;
  next_tick_ = std::min(next_tick_, now);
}

void Membership::Bid(Instant now) {
  Promise(now, {.round = ballot_.round + 1, .coordinator = self_});
  frozen_ = true;
  MembershipMessage vote = *Make(now, self_, MembershipKind::kVote);
  const std::span<const CallId> calls = CallsOf(MembershipKind::kVote);
  vote.calls.assign(calls.begin(), calls.end());
  votes_.emplace(self_, std::move(vote));
  DueTo(view_.members, MembershipKind::kPrepare);
  ProposeIfVoted(now);
}

void Membership::ProposeIfVoted(Instant now) {
  if (!bidding() || proposed_ || !Majority(votes_.size())) return;
  // One that was cut off hears the others again one after the other.
  const bool settled =
      majority_since_ && now - std::max(*majority_since_, regained_at_) >= LastChance();
  for (const Rank member : view_.members) {
    const bool awaited = Reaches(now, member) || IsPartlySilent(now, member) || !settled;
    if (member != self_ && awaited && !votes_.contains(member)) return;
  }
  // An accepted proposal may have been decided.
  const auto newest =
      std::ranges::max_element(votes_, {}, [](const auto& entry) { return entry.second.accepted; });
  const MembershipMessage& vote = newest->second;
  Proposal proposal{.members = vote.ranks, .firsts = vote.calls};
  if (vote.accepted.round == 0) {
    proposal.members = Agreeable(now);
    const bool same = proposal.members == view_.members;
    proposal.firsts = same ? view_.firsts : FirstsAfterVotes();
  }
  if (!Majority(proposal.members.size())) return;
  proposed_ = true;
  accepted_ballot_ = ballot_;
  accepted_ = std::move(proposal);
  acceptors_ = {self_};
  DueTo(view_.members, MembershipKind::kProposal);
  DecideIfAccepted(now);
}

bool Membership::Suspects(Instant now, Rank a, Rank b) const {
  if (a == self_) return b != self_ && !Reaches(now, b);
  if (!Claims(now, a) || !std::ranges::binary_search(other(a).suspects, b)) return false;
  // It may have been cut off itself, and hear `b` again in a moment.
  return now - *other(a).suspects_since >= LastChance();
}

std::vector<Membership::Unreached> Membership::UnreachedAmong(
    Instant now, const std::vector<Rank>& ranks) const {
  std::vector<Unreached> unreached;
  for (const Rank rank : ranks) {
    Unreached each{.rank = rank};
    for (const Rank another : ranks) {
      const bool by_other = Suspects(now, another, rank);
      each.pairs += by_other || Suspects(now, rank, another);
      each.suspected += by_other;
    }
    if (each.pairs > 0) unreached.push_back(each);
  }
  std::ranges::sort(unreached);
  return unreached;
}

std::vector<Rank> Membership::Agreeable(Instant now) const {
  std::vector<Rank> agreeable;
  for (const auto& [rank, vote] : votes_) agreeable.push_back(rank);
  while (true) {
    const std::vector<Unreached> unreached = UnreachedAmong(now, agreeable);
    if (unreached.empty()) return agreeable;
    std::erase(agreeable, unreached.back().rank);
  }
}

bool Membership::IsPartlySilent(Instant now, Rank rank) const {
  if (rank == self_ || !other(rank).suspected()) return false;
  return std::ranges::any_of(other(rank).paths, [&](const Path& each) {
    return (!each.suspected || each.unusable) &&
           now - each.heard_at < peer_timeout_ / kMinorityPerTimeout;
  });
}

bool Membership::LacksEvidence(Instant now) const {
  const auto partly = [&](Rank rank) { return IsPartlySilent(now, rank); };
  if (std::ranges::none_of(view_.members, partly)) return false;
  const std::vector<Unreached> all = UnreachedAmong(now, view_.members);
  if (all.empty()) return false;
  const bool tie = all.size() > 1 && all[all.size() - 2].pairs == all.back().pairs;
  return tie || all.back().rank == self_;
}

std::vector<CallId> Membership::FirstsAfterVotes() const {
  std::map<CollectiveId, Sequence> newest;
  for (const auto& [rank, vote] : votes_) {
    for (const CallId call : vote.calls) {
      Sequence& highest = newest.try_emplace(call.collective, call.sequence).first->second;
      highest = std::max(highest, call.sequence);
    }
  }
  std::vector<CallId> firsts;
  for (const auto& [collective, sequence] : newest) {
    // After the last number that there is, no call can follow.
    const std::uint32_t next =
        std::min(sequence.value(), std::numeric_limits<std::uint32_t>::max() - 1) + 1;
    firsts.push_back({.collective = collective, .sequence = Sequence(next)});
  }
  return firsts;
}

void Membership::DecideIfAccepted(Instant now) {
  if (!Majority(acceptors_.size())) return;
  const std::vector<Rank> voters = view_.members;
  Begin(now, {.number = view_.number + 1,
              .members = std::move(accepted_.members),
              .firsts = std::move(accepted_.firsts)});
  DueTo(voters, MembershipKind::kDecision);
}

void Membership::Begin(Instant now, View view) {
  std::swap(view_, view);
  if (view.members != view_.members) earlier_.push_back(std::move(view));
  ++changes_;
  frozen_ = false;
  stuck_ = false;
  ballot_ = {};
  accepted_ballot_ = {};
  accepted_ = {};
  votes_.clear();
  proposed_ = false;
  acceptors_.clear();
  concerned_since_.reset();
  convinced_since_.reset();
  majority_since_.reset();
  minority_since_.reset();
  for (Other& there : others_) {
    for (Path& each : there.paths) {
      each.due.fill(false);
      each.told_at.reset();
    }
    there.suspects.clear();
    there.suspects_since.reset();
    there.suspects_us_since.reset();
    there.assemblies = {};
  }
  // Some of its members may be silent already.
  next_tick_ = removed() ? kNever : now;
}

}  // namespace optireduce
