#include "ffi/protocol/membership.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "ffi/base/check.h"

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
// Chosen: what a rank says of others holds for half a peer_timeout, many times its repetition.
constexpr int kClaimsPerTimeout = 2;
// Chosen: a rank that slept takes all others for silent until they have answered.
constexpr int kMinorityPerTimeout = 4;
// Chosen: two for those that hear others but are not heard, and as much again for the ballots.
constexpr int kAgreementTimeouts = 4;
// Chosen: a rank that was removed needs to be told only once.
constexpr Duration kTellInterval = std::chrono::milliseconds(100);

constexpr std::size_t Index(MembershipKind kind) { return static_cast<std::size_t>(kind) - 1; }

std::uint16_t PartsOf(std::size_t calls) {
  return static_cast<std::uint16_t>(
      std::max<std::size_t>((calls + kMembershipCallsMax - 1) / kMembershipCallsMax, 1));
}

}  // namespace

bool View::Has(Rank rank) const { return std::ranges::binary_search(members, rank); }

Sequence View::FirstOf(CollectiveId collective) const {
  const auto at = std::ranges::lower_bound(firsts, collective, {}, &CallId::collective);
  return at == firsts.end() || at->collective != collective ? Sequence(0) : at->sequence;
}

Membership::Membership(Rank self, std::uint16_t world_size, Duration peer_timeout)
    : self_(self), peer_timeout_(peer_timeout), others_(world_size) {
  OR_CHECK(peer_timeout > Duration::zero());
  for (std::uint16_t r = 0; r < world_size; ++r) view_.members.emplace_back(r);
}

// ---- What is known of the others.

bool Membership::Claims(Instant now, Rank rank) const {
  return !other(rank).suspects.empty() &&
         now - other(rank).suspects_at < peer_timeout_ / kClaimsPerTimeout;
}

bool Membership::Reaches(Instant now, Rank rank) const {
  const Other& there = other(rank);
  if (!view_.Has(rank) || there.suspected) return false;
  return !(Claims(now, rank) && there.suspects_us_since &&
           now - *there.suspects_us_since >= peer_timeout_);
}

std::size_t Membership::Connected(Instant now) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      view_.members, [&](Rank rank) { return rank == self_ || Reaches(now, rank); }));
}

bool Membership::Concerned(Instant now) const {
  return ballot_.round > 0 || std::ranges::any_of(view_.members, [&](Rank rank) {
           return rank != self_ && (other(rank).suspected || Claims(now, rank));
         });
}

bool Membership::Convinced(Instant now) const {
  return ballot_.round > 0 || std::ranges::any_of(view_.members, [&](Rank rank) {
           if (rank == self_) return false;
           const bool claims = Claims(now, rank) && other(rank).suspects_since &&
                               now - *other(rank).suspects_since >= peer_timeout_;
           return claims || !Reaches(now, rank);
         });
}

void Membership::Started(CallId call) {
  OR_CHECK(!frozen_);
  const auto at = std::ranges::lower_bound(newest_, call.collective, {}, &CallId::collective);
  if (at == newest_.end() || at->collective != call.collective) {
    newest_.insert(at, call);
  } else {
    at->sequence = std::max(at->sequence, call.sequence);
  }
}

void Membership::Heard(Instant now, Rank rank) {
  if (!view_.Has(rank)) return TellDecision(now, rank);
  Other& there = other(rank);
  const bool silent = !concerned_since_ || there.heard_at < *concerned_since_ ||
                      now - there.heard_at >= peer_timeout_ / kMinorityPerTimeout;
  if (silent) regained_at_ = now;
  there.heard_at = now;
  if (there.suspected) next_tick_ = std::min(next_tick_, now);
  there.suspected = there.unusable;
}

void Membership::SetUnusable(Instant now, Rank rank, bool unusable) {
  other(rank).unusable = unusable;
  if (unusable) Suspect(now, rank);
}

void Membership::Suspect(Instant now, Rank rank) {
  if (removed() || rank == self_ || !view_.Has(rank) || other(rank).suspected) return;
  other(rank).suspected = true;
  next_tick_ = std::min(next_tick_, now);
}

void Membership::NoteSuspects(Instant now, Rank from, const std::vector<Rank>& suspects) {
  Other& there = other(from);
  // What was said too long ago is not what it has said ever since.
  if (!Claims(now, from)) {
    there.suspects_since.reset();
    there.suspects_us_since.reset();
  }
  if (suspects.empty()) {
    there.suspects_since.reset();
  } else if (!there.suspects_since) {
    there.suspects_since = now;
  }
  if (!std::ranges::binary_search(suspects, self_)) {
    there.suspects_us_since.reset();
  } else if (!there.suspects_us_since) {
    there.suspects_us_since = now;
  }
  there.suspects = suspects;
  there.suspects_at = now;
  if (!suspects.empty() && next_tick_ == kNever && !stuck_) next_tick_ = now;
}

std::vector<Rank> Membership::OwnSuspects() const {
  std::vector<Rank> suspects;
  std::ranges::copy_if(view_.members, std::back_inserter(suspects),
                       [&](Rank rank) { return rank != self_ && other(rank).suspected; });
  return suspects;
}

// ---- Messages.

void Membership::Due(Rank to, MembershipKind kind) {
  if (to == self_ || other(to).due[Index(kind)]) return;
  other(to).due[Index(kind)] = true;
  other(to).part[Index(kind)] = 0;
}

void Membership::DueToAll(MembershipKind kind) {
  for (const Rank member : view_.members) Due(member, kind);
}

std::span<const CallId> Membership::CallsOf(MembershipKind kind) const {
  switch (kind) {
    case MembershipKind::kVote:
      return accepted_ballot_.round > 0 ? accepted_.firsts : newest_;
    case MembershipKind::kProposal:
      return accepted_.firsts;
    case MembershipKind::kDecision:
      return view_.firsts;
    case MembershipKind::kStatus:
    case MembershipKind::kPrepare:
    case MembershipKind::kAccepted:
      return {};
  }
  return {};
}

std::optional<MembershipMessage> Membership::Make(Instant now, Rank to, MembershipKind kind) const {
  MembershipMessage message{.kind = kind, .view = view_.number, .ballot = ballot_};
  const bool accepted = accepted_ballot_.round > 0;
  switch (kind) {
    case MembershipKind::kStatus:
      message.asks = Concerned(now);
      message.ranks = OwnSuspects();
      break;
    case MembershipKind::kPrepare:
      if (!bidding() || proposed_) return std::nullopt;
      break;
    case MembershipKind::kVote:
      if (!frozen_ || to != ballot_.coordinator) return std::nullopt;
      message.accepted = accepted_ballot_;
      message.ranks = accepted ? accepted_.members : OwnSuspects();
      break;
    case MembershipKind::kProposal:
      if (!bidding() || !proposed_) return std::nullopt;
      message.ranks = accepted_.members;
      break;
    case MembershipKind::kAccepted:
      if (accepted_ballot_ != ballot_ || to != ballot_.coordinator) return std::nullopt;
      break;
    case MembershipKind::kDecision:
      if (view_.number == 0) return std::nullopt;
      message.ballot = {};
      message.ranks = view_.members;
      break;
  }
  if (kind != MembershipKind::kDecision && (removed() || !view_.Has(to))) return std::nullopt;
  return message;
}

std::optional<Membership::Outgoing> Membership::PollOther(Instant now, Rank to,
                                                          std::span<std::byte> out) {
  for (std::size_t k = 0; k < kKinds; ++k) {
    if (!other(to).due[k]) continue;
    const auto kind = static_cast<MembershipKind>(k + 1);
    auto message = Make(now, to, kind);
    if (!message) {
      other(to).due[k] = false;
      continue;
    }
    const std::span<const CallId> calls = CallsOf(kind);
    message->parts = PartsOf(calls.size());
    // What it is made of may have changed since its first part.
    message->part = static_cast<std::uint16_t>(other(to).part[k]++ % message->parts);
    if (message->part + 1 == message->parts) other(to).due[k] = false;
    const std::size_t first = message->part * kMembershipCallsMax;
    const std::size_t last = std::min(calls.size(), first + kMembershipCallsMax);
    message->calls.assign(calls.begin() + static_cast<std::ptrdiff_t>(first),
                          calls.begin() + static_cast<std::ptrdiff_t>(last));
    return Outgoing{.to = to, .bytes = EncodeMembership(*message, out)};
  }
  return std::nullopt;
}

std::optional<Membership::Outgoing> Membership::Poll(Instant now, std::span<std::byte> out) {
  for (std::size_t turn = 0; turn < others_.size(); ++turn) {
    const Rank to(static_cast<std::uint16_t>((next_other_ + turn) % others_.size()));
    if (auto outgoing = PollOther(now, to, out)) {
      next_other_ = (to.index() + 1) % others_.size();
      return outgoing;
    }
  }
  return std::nullopt;
}

std::optional<MembershipMessage> Membership::Assemble(Rank from, MembershipMessage part) {
  if (part.parts == 1) return part;
  Assembly& assembly = other(from).assemblies[Index(part.kind)];
  const auto identity = [](const MembershipMessage& message) {
    return std::tuple(message.view, message.ballot, message.accepted);
  };
  if (assembly.seen.empty() || identity(part) > identity(assembly.message)) {
    assembly.message = part;
    assembly.message.calls.clear();
    assembly.seen.assign(part.parts, false);
    assembly.missing = part.parts;
  }
  if (identity(part) != identity(assembly.message) || part.parts != assembly.seen.size()) {
    return std::nullopt;
  }
  std::vector<CallId>& calls = assembly.message.calls;
  if (!assembly.seen[part.part]) {
    assembly.seen[part.part] = true;
    --assembly.missing;
    calls.insert(calls.end(), part.calls.begin(), part.calls.end());
  }
  if (assembly.missing > 0) return std::nullopt;
  std::ranges::sort(calls);
  if (std::ranges::adjacent_find(calls, {}, &CallId::collective) != calls.end()) {
    return std::nullopt;
  }
  MembershipMessage message = assembly.message;
  message.part = 0;
  message.parts = 1;
  return message;
}

bool Membership::Handle(Instant now, Rank from, std::span<const std::byte> payload) {
  auto part = ParseMembership(payload, static_cast<std::uint16_t>(others_.size()));
  if (!part || from.index() >= others_.size() || from == self_) return false;
  if (removed()) {
    // It may be the only one that is left of those who know.
    if (part->view < view_.number) TellDecision(now, from);
    return true;
  }
  Heard(now, from);
  if (part->kind == MembershipKind::kDecision) {
    if (part->view <= view_.number) return true;
    auto decision = Assemble(from, std::move(*part));
    return !decision || TakeDecision(now, std::move(*decision));
  }
  if (part->view < view_.number) {
    TellDecision(now, from);
    return true;
  }
  if (part->view > view_.number) {
    // It answers with the decision.
    Due(from, MembershipKind::kStatus);
    return true;
  }
  const bool members = part->kind == MembershipKind::kProposal || part->accepted.round > 0;
  if (members && !std::ranges::includes(view_.members, part->ranks)) return false;
  if (!view_.Has(from)) return true;
  const auto message = Assemble(from, std::move(*part));
  if (!message) return true;
  switch (message->kind) {
    case MembershipKind::kStatus:
      TakeStatus(now, from, *message);
      break;
    case MembershipKind::kPrepare:
      TakePrepare(now, from, *message);
      break;
    case MembershipKind::kVote:
      TakeVote(now, from, *message);
      break;
    case MembershipKind::kProposal:
      TakeProposal(now, from, *message);
      break;
    case MembershipKind::kAccepted:
      TakeAccepted(now, from, *message);
      break;
    case MembershipKind::kDecision:
      break;
  }
  return true;
}

void Membership::TakeStatus(Instant now, Rank from, const MembershipMessage& message) {
  NoteSuspects(now, from, message.ranks);
  // It knows its own ballots best.
  if (message.ballot.coordinator != self_) Promise(now, message.ballot);
  if (message.asks && !Concerned(now)) Due(from, MembershipKind::kStatus);
}

void Membership::TakePrepare(Instant now, Rank from, const MembershipMessage& message) {
  if (message.ballot.coordinator != from) return;
  if (message.ballot < ballot_) return Due(from, MembershipKind::kStatus);
  Promise(now, message.ballot);
  frozen_ = true;
  Due(from, MembershipKind::kVote);
}

void Membership::TakeVote(Instant now, Rank from, const MembershipMessage& message) {
  if (!bidding() || message.ballot != ballot_) return;
  if (message.accepted.round == 0) NoteSuspects(now, from, message.ranks);
  if (proposed_) return;
  votes_.insert_or_assign(from, message);
  ProposeIfVoted(now);
}

void Membership::TakeProposal(Instant now, Rank from, const MembershipMessage& message) {
  if (message.ballot.coordinator != from) return;
  if (message.ballot < ballot_) return Due(from, MembershipKind::kStatus);
  Promise(now, message.ballot);
  frozen_ = true;
  accepted_ballot_ = message.ballot;
  accepted_ = {.members = message.ranks, .firsts = message.calls};
  Due(from, MembershipKind::kAccepted);
}

void Membership::TakeAccepted(Instant now, Rank from, const MembershipMessage& message) {
  if (!bidding() || !proposed_ || message.ballot != ballot_) return;
  acceptors_.insert(from);
  DecideIfAccepted(now);
}

bool Membership::TakeDecision(Instant now, const MembershipMessage& message) {
  View next{.number = message.view, .members = message.ranks, .firsts = message.calls};
  // Its members have voted in the view before, and so know it.
  if (next.Has(self_) && next.number != view_.number + 1) return false;
  if (!std::ranges::includes(view_.members, next.members)) return false;
  Begin(now, std::move(next));
  return true;
}

void Membership::TellDecision(Instant now, Rank to) {
  Other& there = other(to);
  if (there.told_at && now - *there.told_at < kTellInterval) return;
  there.told_at = now;
  Due(to, MembershipKind::kDecision);
}

// ---- Agreement.

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
    stuck_ = false;
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
  DueToAll(MembershipKind::kStatus);
  // Nothing can be decided until one of the others is heard again.
  if (stuck_ && !Majority(Connected(now))) next_tick_ = kNever;
  if (bidding()) {
    for (const Rank member : view_.members) {
      if (proposed_ && !acceptors_.contains(member)) Due(member, MembershipKind::kProposal);
      if (!proposed_ && !votes_.contains(member)) Due(member, MembershipKind::kPrepare);
    }
    ProposeIfVoted(now);
  } else if (OwnTurn(now)) {
    Bid(now);
  }
}

void Membership::SuspectSilent(Instant now) {
  for (const Rank member : view_.members) {
    if (member == self_) continue;
    Other& there = other(member);
    if (now - std::max(there.heard_at, *concerned_since_) >= peer_timeout_) there.suspected = true;
  }
}

void Membership::NoteStuck(Instant now) {
  const bool majority = Majority(Connected(now));
  auto& since = majority ? majority_since_ : minority_since_;
  if (!since) since = now;
  (majority ? minority_since_ : majority_since_).reset();
  const bool minority =
      minority_since_ && now - *minority_since_ >= peer_timeout_ / kMinorityPerTimeout;
  stuck_ = minority ||
           (convinced_since_ && now - *convinced_since_ >= peer_timeout_ * kAgreementTimeouts);
}

bool Membership::OwnTurn(Instant now) const {
  if (!convinced_since_ || !majority_since_) return false;
  // The lowest goes first, and whoever goes already is given time to come to an end.
  std::int64_t before = std::ranges::count_if(
      view_.members, [&](Rank rank) { return rank < self_ && Reaches(now, rank); });
  if (ballot_.round > 0 && Reaches(now, ballot_.coordinator)) ++before;
  const Duration retry = RetryInterval();
  const Duration patience = retry * kPatience * (1 + std::min(ballot_.round, kPatienceRoundsMax));
  // Those who are suspected, or suspect, get a last chance to say otherwise.
  const Instant since = std::max({*convinced_since_, *majority_since_, ballot_at_});
  return now - since >= LastChance() + patience * before;
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
  DueToAll(MembershipKind::kPrepare);
  ProposeIfVoted(now);
}

void Membership::ProposeIfVoted(Instant now) {
  if (!bidding() || proposed_ || !Majority(votes_.size())) return;
  // One that was cut off hears the others again one after the other.
  const bool settled =
      majority_since_ && now - std::max(*majority_since_, regained_at_) >= LastChance();
  for (const Rank member : view_.members) {
    const bool awaited = Reaches(now, member) || !settled;
    if (member != self_ && awaited && !votes_.contains(member)) return;
  }
  // What has been accepted may have been decided.
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
  DueToAll(MembershipKind::kProposal);
  DecideIfAccepted(now);
}

bool Membership::Suspects(Instant now, Rank a, Rank b) const {
  if (a == self_) return b != self_ && !Reaches(now, b);
  if (!Claims(now, a) || !std::ranges::binary_search(other(a).suspects, b)) return false;
  // It may have been cut off itself, and hear `b` again in a moment.
  return now - *other(a).suspects_since >= LastChance();
}

std::vector<Rank> Membership::Agreeable(Instant now) const {
  std::vector<Rank> agreeable;
  for (const auto& [rank, vote] : votes_) agreeable.push_back(rank);
  while (true) {
    // By pairs that do not reach each other, then by suspects, then the highest rank.
    std::optional<std::tuple<int, int, Rank>> worst;
    for (const Rank rank : agreeable) {
      int pairs = 0;
      int suspected = 0;
      for (const Rank another : agreeable) {
        const bool by_other = Suspects(now, another, rank);
        pairs += by_other || Suspects(now, rank, another);
        suspected += by_other;
      }
      worst = std::max(worst, std::optional(std::tuple(pairs, suspected, rank)));
    }
    if (!worst || std::get<0>(*worst) == 0) return agreeable;
    std::erase(agreeable, std::get<2>(*worst));
  }
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
  for (const Rank rank : voters) Due(rank, MembershipKind::kDecision);
}

void Membership::Begin(Instant now, View view) {
  std::swap(view_, view);
  if (view.members != view_.members) earlier_.push_back(std::move(view));
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
    there.due.fill(false);
    there.told_at.reset();
    there.suspects.clear();
    there.suspects_since.reset();
    there.suspects_us_since.reset();
    there.assemblies = {};
  }
  // Some of its members may be silent already.
  next_tick_ = removed() ? kNever : now;
}

}  // namespace optireduce
