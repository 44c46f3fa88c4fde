#include "ffi/protocol/session/membership.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "ffi/base/check.h"

namespace optireduce {
namespace {

// Chosen: what a rank says of others holds for half a peer_timeout, many times its repetition.
constexpr int kClaimsPerTimeout = 2;
// Chosen: a rank that was removed needs to be told only once.
constexpr Duration kTellInterval = std::chrono::milliseconds(100);

constexpr std::size_t Index(MembershipKind kind) { return static_cast<std::size_t>(kind) - 1; }

std::uint16_t PartsOf(std::size_t calls) {
  return static_cast<std::uint16_t>(
      std::max<std::size_t>((calls + kMembershipCallsMax - 1) / kMembershipCallsMax, 1));
}

}  // namespace

bool View::Has(Rank rank) const { return std::ranges::binary_search(members, rank); }

Sequence View::FirstOf(CollectiveId bucket) const {
  const auto at = std::ranges::lower_bound(firsts, bucket, {}, &CallId::collective);
  return at == firsts.end() || at->collective != bucket ? Sequence(0) : at->sequence;
}

Membership::Membership(Rank self, std::uint16_t world_size, Duration peer_timeout,
                       std::uint16_t lanes)
    : self_(self), peer_timeout_(peer_timeout), others_(world_size) {
  OR_CHECK(peer_timeout > Duration::zero() && lanes > 0);
  for (Other& there : others_) there.paths.resize(lanes);
  for (std::uint16_t r = 0; r < world_size; ++r) view_.members.emplace_back(r);
}

// ---- Knowledge of the other ranks.

bool Membership::Claims(Instant now, Rank rank) const {
  return !other(rank).suspects.empty() &&
         now - other(rank).suspects_at < peer_timeout_ / kClaimsPerTimeout;
}

bool Membership::Reaches(Instant now, Rank rank) const {
  const Other& there = other(rank);
  if (!view_.Has(rank) || there.suspected()) return false;
  return !(Claims(now, rank) && there.suspects_us_since &&
           now - *there.suspects_us_since >= peer_timeout_);
}

std::size_t Membership::Connected(Instant now) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      view_.members, [&](Rank rank) { return rank == self_ || Reaches(now, rank); }));
}

bool Membership::Concerned(Instant now) const {
  return ballot_.round > 0 || std::ranges::any_of(view_.members, [&](Rank rank) {
           return rank != self_ && (other(rank).suspected() || Claims(now, rank));
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

bool Membership::TryStart(std::uint32_t view, CallId call, CollectiveId among_members) {
  if (view != view_.number) return false;
  const auto entry = [&](CollectiveId bucket) {
    return std::ranges::lower_bound(newest_, bucket, {}, &CallId::collective);
  };
  const auto known = entry(call.collective);
  const bool begun = known != newest_.end() && known->collective == call.collective &&
                     known->sequence >= call.sequence;
  if (frozen_ && !begun) return false;
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
  if (!view_.Has(rank)) return TellDecision(now, lane, rank);
  Path& there = path(lane, rank);
  const bool silent = !concerned_since_ || there.heard_at < *concerned_since_ ||
                      now - there.heard_at >= peer_timeout_ / kMinorityPerTimeout;
  if (silent) regained_at_ = now;
  there.heard_at = now;
  if (!there.suspected || there.unusable) return;
  there.suspected = false;
  next_tick_ = std::min(next_tick_, now);
}

void Membership::SetUnusable(Instant now, std::uint16_t lane, Rank rank, bool unusable) {
  path(lane, rank).unusable = unusable;
  if (unusable) Suspect(now, lane, rank);
}

void Membership::Suspect(Instant now, std::uint16_t lane, Rank rank) {
  if (removed() || rank == self_ || !view_.Has(rank) || path(lane, rank).suspected) return;
  path(lane, rank).suspected = true;
  next_tick_ = std::min(next_tick_, now);
}

void Membership::NoteSuspects(Instant now, Rank from, const std::vector<Rank>& suspects) {
  Other& there = other(from);
  // An outdated status is no evidence for the time since then.
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
                       [&](Rank rank) { return rank != self_ && other(rank).suspected(); });
  return suspects;
}

// ---- Messages.

void Membership::Due(std::uint16_t lane, Rank to, MembershipKind kind) {
  if (to == self_ || path(lane, to).due[Index(kind)]) return;
  path(lane, to).due[Index(kind)] = true;
  path(lane, to).part[Index(kind)] = 0;
}

void Membership::DueTo(std::span<const Rank> ranks, MembershipKind kind) {
  ++changes_;
  for (const Rank rank : ranks) {
    for (std::uint16_t lane = 0; lane < other(rank).paths.size(); ++lane) Due(lane, rank, kind);
  }
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

std::optional<Membership::Outgoing> Membership::PollPath(Instant now, std::uint16_t lane, Rank to,
                                                         std::span<std::byte> out) {
  Path& there = path(lane, to);
  for (std::size_t k = 0; k < kKinds; ++k) {
    if (!there.due[k]) continue;
    const auto kind = static_cast<MembershipKind>(k + 1);
    auto message = Make(now, to, kind);
    if (!message) {
      there.due[k] = false;
      continue;
    }
    const std::span<const CallId> calls = CallsOf(kind);
    message->parts = PartsOf(calls.size());
    // The contents may have changed since the first part.
    message->part = static_cast<std::uint16_t>(there.part[k]++ % message->parts);
    if (message->part + 1 == message->parts) there.due[k] = false;
    const std::size_t first = message->part * kMembershipCallsMax;
    const std::size_t last = std::min(calls.size(), first + kMembershipCallsMax);
    message->calls.assign(calls.begin() + static_cast<std::ptrdiff_t>(first),
                          calls.begin() + static_cast<std::ptrdiff_t>(last));
    return Outgoing{.to = to, .bytes = EncodeMembership(*message, out)};
  }
  return std::nullopt;
}

std::optional<Membership::Outgoing> Membership::Poll(Instant now, std::uint16_t lane,
                                                     std::span<std::byte> out) {
  for (std::size_t turn = 0; turn < others_.size(); ++turn) {
    const Rank to(static_cast<std::uint16_t>((next_other_ + turn) % others_.size()));
    if (auto outgoing = PollPath(now, lane, to, out)) {
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

bool Membership::Handle(Instant now, std::uint16_t lane, Rank from,
                        std::span<const std::byte> payload) {
  auto part = ParseMembership(payload, static_cast<std::uint16_t>(others_.size()));
  if (!part || from.index() >= others_.size() || from == self_) return false;
  if (removed()) {
    // It may be the only one that is left of those who know.
    if (part->view < view_.number) TellDecision(now, lane, from);
    return true;
  }
  Heard(now, lane, from);
  if (part->kind == MembershipKind::kDecision) {
    if (part->view <= view_.number) return true;
    const auto decision = Assemble(from, std::move(*part));
    return !decision || HandleDecision(now, *decision);
  }
  if (part->view < view_.number) {
    TellDecision(now, lane, from);
    return true;
  }
  if (part->view > view_.number) {
    // It answers with the decision.
    Due(lane, from, MembershipKind::kStatus);
    return true;
  }
  const bool members = part->kind == MembershipKind::kProposal || part->accepted.round > 0;
  if (members && !std::ranges::includes(view_.members, part->ranks)) return false;
  if (!view_.Has(from)) return true;
  const auto message = Assemble(from, std::move(*part));
  if (message) HandleBallot(now, lane, from, *message);
  return true;
}

void Membership::HandleBallot(Instant now, std::uint16_t lane, Rank from,
                              const MembershipMessage& message) {
  switch (message.kind) {
    case MembershipKind::kStatus:
      return HandleStatus(now, lane, from, message);
    case MembershipKind::kPrepare:
      return HandlePrepare(now, lane, from, message);
    case MembershipKind::kVote:
      return HandleVote(now, from, message);
    case MembershipKind::kProposal:
      return HandleProposal(now, lane, from, message);
    case MembershipKind::kAccepted:
      return HandleAccepted(now, from, message);
    case MembershipKind::kDecision:
      return;
  }
}

void Membership::HandleStatus(Instant now, std::uint16_t lane, Rank from,
                              const MembershipMessage& message) {
  NoteSuspects(now, from, message.ranks);
  // It knows its own ballots best.
  if (message.ballot.coordinator != self_) Promise(now, message.ballot);
  if (message.asks && !Concerned(now)) Due(lane, from, MembershipKind::kStatus);
}

void Membership::HandlePrepare(Instant now, std::uint16_t lane, Rank from,
                               const MembershipMessage& message) {
  if (message.ballot.coordinator != from) return;
  if (message.ballot < ballot_) return Due(lane, from, MembershipKind::kStatus);
  Promise(now, message.ballot);
  frozen_ = true;
  Due(lane, from, MembershipKind::kVote);
}

void Membership::HandleVote(Instant now, Rank from, const MembershipMessage& message) {
  if (!bidding() || message.ballot != ballot_) return;
  if (message.accepted.round == 0) NoteSuspects(now, from, message.ranks);
  if (proposed_) return;
  votes_.insert_or_assign(from, message);
  ProposeIfVoted(now);
}

void Membership::HandleProposal(Instant now, std::uint16_t lane, Rank from,
                                const MembershipMessage& message) {
  if (message.ballot.coordinator != from) return;
  if (message.ballot < ballot_) return Due(lane, from, MembershipKind::kStatus);
  Promise(now, message.ballot);
  frozen_ = true;
  accepted_ballot_ = message.ballot;
  accepted_ = {.members = message.ranks, .firsts = message.calls};
  Due(lane, from, MembershipKind::kAccepted);
}

void Membership::HandleAccepted(Instant now, Rank from, const MembershipMessage& message) {
  if (!bidding() || !proposed_ || message.ballot != ballot_) return;
  acceptors_.insert(from);
  DecideIfAccepted(now);
}

bool Membership::HandleDecision(Instant now, const MembershipMessage& message) {
  View next{.number = message.view, .members = message.ranks, .firsts = message.calls};
  // Its members have voted in the view before, and so know it.
  if (next.Has(self_) && next.number != view_.number + 1) return false;
  if (!std::ranges::includes(view_.members, next.members)) return false;
  Begin(now, std::move(next));
  return true;
}

void Membership::TellDecision(Instant now, std::uint16_t lane, Rank to) {
  Path& there = path(lane, to);
  if (there.told_at && now - *there.told_at < kTellInterval) return;
  there.told_at = now;
  Due(lane, to, MembershipKind::kDecision);
}

}  // namespace optireduce
