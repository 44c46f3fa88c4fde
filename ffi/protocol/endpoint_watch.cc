// Who is missing, and who disagrees. A call that waits must end: with a result, or with an error
// that names the rank at fault. Silence is measured on the network thread of the other rank, so a
// program that merely computes for long is never taken for dead.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "ffi/protocol/endpoint_impl.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Chosen: a quarter of the time after which a peer is given up, so that three signs may be lost.
constexpr int kSignsPerTimeout = 4;

// What to do about a peer that is gone.
std::string AdviceFor(const Peer& gone) {
  if (gone.left) return ". Every rank must make the same number of calls";
  if (gone.black_hole) return "";
  return ". Is its process alive, and can UDP pass both ways?";
}

}  // namespace

std::string Endpoint::Impl::WhySilent(Rank rank) const {
  return "rank " + std::to_string(rank.value()) + " has been silent for more than " +
         RoundedSeconds(options_.peer_timeout) + " (peer_timeout_s)" + OnLane();
}

std::string Endpoint::Impl::RoundedSeconds(Duration duration) {
  const auto tenths = duration / std::chrono::milliseconds(100);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string Endpoint::Impl::OnLane() const {
  return options_.membership ? " on lane " + std::to_string(options_.lane) : "";
}

std::vector<WaitingCall> Endpoint::Impl::WaitingCalls(Instant before) const {
  std::vector<WaitingCall> calls;
  for (const auto& [id, active] : calls_) {
    const Exchange& exchange = active.exchange;
    if (!exchange.submitted() || exchange.finished() || exchange.submitted_at() >= before) continue;
    if (id.sequence == kFinalDrain) continue;
    calls.push_back(WaitingFor(exchange));
  }
  return calls;
}

WaitingCall Endpoint::Impl::WaitingFor(const Exchange& exchange) const {
  const Collective& collective = exchange.collective();
  const auto holds_up = [&](MemberIndex member, bool contributed) {
    if (member == collective.self) return false;
    return contributed ? exchange.Needs(member) : exchange.NeedsContribution(member);
  };
  // Results wait for the slowest contribution: only when all of these are here, their owners are
  // the ones to be asked.
  bool contributed = true;
  for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
    if (holds_up(MemberIndex(m), false)) contributed = false;
  }
  WaitingCall call{.token = exchange.token(), .ranks = {}, .absent = {}};
  for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
    const MemberIndex member(m);
    if (!holds_up(member, contributed)) continue;
    call.ranks.push_back(collective.RankOf(member));
    if (!exchange.heard(member)) call.absent.push_back(collective.RankOf(member));
  }
  return call;
}

void Endpoint::Impl::HandleTimeout(Instant now) {
  refusals_stale_ = true;
  const bool stuck = IsStuck();
  const auto next = [&](std::size_t r) { return peers_.NextDue(now, r); };
  for (std::size_t r = next(0); r < options_.world_size; r = next(r + 1)) {
    if (peers_[r]->muted(stuck)) continue;
    const Rank rank(static_cast<std::uint16_t>(r));
    HandleFates(now, rank, peer(rank).flow.HandleTimeout(now));
    CheckPath(now, rank);
    transmitter_.AskHeld(now, rank);
    if (peers_[r]->flow.unanswered()) unanswered_.insert(rank);
  }
  GiveUpSilentPeers(now);
  std::vector<CallId> due;
  for (const auto& [call, active] : calls_) {
    if (now >= active.exchange.deadline()) due.push_back(call);
  }
  for (const CallId call : due) Expire(now, call);
  for (const CallId call : lag_.HandleTimeout(now)) {
    OpenCall* const open = calls_.Find(call);
    if (open != nullptr) FinishIfComplete(now, *open);
  }
  if (now >= next_tick_) Tick(now);
  FailHeldTooLong(now);
  if (!Agrees()) return;
  const MembershipFacts facts = membership_->facts();
  if (now >= facts.timeout) membership_->Open()->HandleTimeout(now);
  if (now >= facts.timeout || facts.changes != changes_) FollowMembership(now);
  GoOn(now);
}

void Endpoint::Impl::Expire(Instant now, CallId call) {
  auto* const open = calls_.Find(call);
  if (open == nullptr) return;
  OpenCall& active = *open;
  const std::size_t sums = active.exchange.sums();
  const bool folded = active.exchange.folded();
  const auto expired = static_cast<std::uint64_t>(active.exchange.Expire(now));
  counters_.stages_expired += expired;
  if (expired > 0 || active.exchange.sums() != sums) transmitter_.QueueAll(active);
  if (active.exchange.folded() != folded) NoteFolded(call);
  // It may be gone by now.
  auto* const left = calls_.Find(call);
  if (left == nullptr) return;
  FinishIfComplete(now, *left);
  EraseIfRemovable(call);
}

Instant Endpoint::Impl::PollTimeout() const {
  Instant at = std::min(next_tick_, lag_.timeout());
  if (Agrees()) {
    const MembershipFacts facts = membership_->facts();
    // By another lane: at once.
    if (facts.changes != changes_) return Instant{};
    at = std::min(at, facts.timeout);
  }
  const bool stuck = IsStuck();
  at = peers_.TimeoutBefore(at, [&](const Peer& other) { return !other.muted(stuck); });
  for (const auto& [call, active] : calls_) at = std::min(at, active.exchange.deadline());
  for (const Held& held : held_) {
    if (!held.given_up) at = std::min(at, TooLongAfter(held.since));
  }
  return at;
}

void Endpoint::Impl::Tick(Instant now) {
  std::vector<CallId> waiting;
  for (const auto& [call, active] : calls_) {
    // A final drain reports nothing, but calls that are held may wait for it.
    const bool final_drain = call.sequence == kFinalDrain && active.exchange.submitted() &&
                             !active.exchange.finished() && !held_.empty();
    if (active.exchange.waiting() || final_drain) waiting.push_back(call);
  }
  next_tick_ = kNever;
  for (const CallId call : waiting) {
    auto* const open = calls_.Find(call);
    // Failed together with another one.
    const bool final_drain = call.sequence == kFinalDrain;
    if (open == nullptr || (!final_drain && !open->exchange.waiting())) continue;
    const Exchange& exchange = open->exchange;
    if (FailIfAbandoned(now, exchange)) continue;
    if (!final_drain &&
        (FailIf(now, call, mismatch_.WhyGivenUp(exchange.collective(), call.sequence)) ||
         FailIf(now, call, mismatch_.FindCrossed(now, exchange)) || FailIfTooLong(now, exchange))) {
      continue;
    }
    if (!final_drain) {
      mismatch_.Report(now, exchange);
      next_tick_ = std::min(next_tick_, TooLongAfter(exchange.called_at()));
    }
    const Duration interval = std::min({kReportInterval, options_.peer_timeout / kSignsPerTimeout,
                                        options_.mismatch_timeout / kSignsPerTimeout});
    next_tick_ = std::min(next_tick_, now + interval);
  }
}

bool Endpoint::Impl::FailIfAbandoned(Instant now, const Exchange& exchange) {
  const CallId call = exchange.call();
  // By value: the exchange may end inside the loop.
  const std::vector<Rank> members = exchange.collective().spec.members;
  const Instant submitted_at = exchange.submitted_at();
  for (const Rank member : members) {
    if (member == options_.rank) continue;
    Peer& other = peer(member);
    const Duration silence = now - std::max(other.last_heard, submitted_at);
    if (silence >= options_.peer_timeout) {
      // Even where this rank has all it needs of it: another one may not.
      if (!other.gone()) Lose(now, member, WhySilent(member));
      auto* const open = calls_.Find(call);
      if (open == nullptr) return true;
      if (call.sequence == kFinalDrain) continue;
      if (!open->exchange.waiting()) return true;
      const CollectiveSpec& spec = open->exchange.collective().spec;
      // Whether this one goes on is agreed.
      if (Survives(spec)) continue;
      Fail(now, call,
           {StatusCode::kUnavailable, "jax_optireduce: " + other.why_gone() +
                                          "; others wait for it in " +
                                          Describe(spec, call.sequence)});
      return true;
    }
    const bool asked =
        other.control.AnyOf([](const SentInfo& info) { return info.kind == DatagramKind::kProbe; });
    if (silence >= options_.peer_timeout / kSignsPerTimeout && !asked) {
      other.control.push_back({.kind = DatagramKind::kProbe});
    }
  }
  return false;
}

void Endpoint::Impl::GiveUpSilentPeers(Instant now) {
  std::erase_if(unanswered_, [&](Rank rank) { return !peers_[rank]->flow.unanswered(); });
  for (const Rank rank : unanswered_) {
    const Peer& other = *peers_[rank];
    if (!other.gone() && other.Silence(now) >= options_.peer_timeout) {
      Lose(now, rank, WhySilent(rank));
    }
  }
}

void Endpoint::Impl::CheckPath(Instant now, Rank rank) {
  Peer& other = *peers_[rank];
  const std::optional<BlackHole> hole = other.flow.black_hole(options_.peer_timeout);
  if (other.black_hole != hole.has_value()) {
    other.black_hole = hole.has_value();
    if (Agrees()) membership_->Open()->SetUnusable(now, lane_, rank, other.black_hole);
  }
  if (!hole || other.left || other.removed) return;
  const std::string why =
      "datagrams of " + std::to_string(hole->lost_bytes) + " bytes to rank " +
      std::to_string(rank.value()) + OnLane() + " do not arrive, those of " +
      std::to_string(hole->delivered_bytes) +
      " bytes do: a link on the way has a smaller MTU. Mend it, or set datagram_bytes_max "
      "(JAX_OPTIREDUCE_DATAGRAM_BYTES_MAX) on every rank to what passes";
  // Where others may go on without it, it is as good as silent; else the next call tries again.
  if (Agrees() && !other.lost) Lose(now, rank, why);
  FailUnserved(now, rank, why);
}

void Endpoint::Impl::FailUnserved(Instant now, Rank rank, const std::string& why) {
  std::vector<CallId> failing;
  std::vector<CallId> over;
  for (const auto& [call, active] : calls_) {
    const Exchange& exchange = active.exchange;
    const auto member = exchange.collective().MemberOf(rank);
    const bool defers = exchange.collective().deferred && exchange.submitted();
    if (!member || Survives(exchange.collective().spec) || !(exchange.waits() || defers)) continue;
    const bool served = exchange.sender().Served(*member);
    if (exchange.finished() && !served) over.push_back(call);
    if (exchange.submitted() && !exchange.finished() && (exchange.Needs(*member) || !served)) {
      failing.push_back(call);
    }
  }
  const std::string prefix = "jax_optireduce: " + why + "; it is needed in ";
  for (const CallId call : failing) {
    Fail(now, call,
         {StatusCode::kUnavailable,
          prefix + Describe(calls_.At(call).exchange.collective().spec, call.sequence)});
  }
  // It is over here, but not there.
  for (const CallId call : over) {
    Exchange& exchange = calls_.At(call).exchange;
    const CollectiveSpec& spec = exchange.collective().spec;
    mismatch_.TellGivenUp(*directory_.Find(call.collective), call.sequence,
                          prefix + Describe(spec, call.sequence), kFlagGaveUp);
    exchange.sender().Release(*exchange.collective().MemberOf(rank));
    EraseIfRemovable(call);
  }
}

Endpoint::Impl::Loss Endpoint::Impl::ReleaseIn(Instant now, OpenCall& open, MemberIndex gone) {
  Exchange& exchange = open.exchange;
  const Collective& collective = exchange.collective();
  const Peer& other = *peers_[collective.RankOf(gone)];
  const bool survives = Survives(collective.spec);
  open.queued[gone.index()] = false;
  // A drain goes on among the members that are left, once they agree.
  const bool drains = survives && exchange.drains() && exchange.submitted();
  if (drains && (exchange.call().sequence == kFinalDrain || other.removed)) {
    exchange.Exclude(now, gone);
    transmitter_.QueueAll(open);
    return Loss::kNone;
  }
  // A member that has left in good order has sent everything for the calls that it has made.
  const bool defers = exchange.submitted() && !exchange.finished() && collective.deferred &&
                      !survives && (other.lost || !exchange.heard(gone));
  const bool needs = (exchange.waiting() || defers) && exchange.Needs(gone);
  exchange.sender().Release(gone);
  if (!needs) return Loss::kNone;
  return drains ? Loss::kUndecided : Loss::kFatal;
}

void Endpoint::Impl::EraseUncalled(Rank gone) {
  const bool left = peers_[gone]->left.has_value();
  calls_.EraseIf([&](const Exchange& exchange) {
    const bool uncalled = !exchange.submitted() && !exchange.over();
    // The data of a member that has left in good order counts in a call that this rank makes later.
    const bool counts = left && Defers(exchange.collective().spec);
    // Other members may have a part in its sums.
    return uncalled && !counts && exchange.OnlyHeard(gone) && exchange.sums() == 0;
  });
}

void Endpoint::Impl::Forget(Instant now, Rank gone) {
  transmitter_.NoteIncastOfPeers();
  Peer& other = peer(gone);
  if (other.gone()) {
    other.DropQueued();
    refusals_.Forget(gone);
  }
  std::vector<CallId> failing;
  std::vector<CallId> over;
  bool undecided = false;
  for (auto& [call, open] : calls_) {
    const CollectiveSpec& spec = open.exchange.collective().spec;
    const std::optional<MemberIndex> member = MemberOf(spec, gone);
    if (!member || (Survives(spec) && !other.gone())) continue;
    const Loss loss = ReleaseIn(now, open, *member);
    if (loss == Loss::kFatal) failing.push_back(call);
    undecided = undecided || loss == Loss::kUndecided;
    if (open.exchange.over()) over.push_back(call);
  }
  directory_.ForEach([&](const Collective& collective) {
    const auto member = collective.MemberOf(gone);
    const bool kept = Survives(collective.spec) && !other.gone();
    if (member && collective.deferred && !kept) collective.deferred->Release(*member);
  });
  const std::string waits = "jax_optireduce: " + other.why_gone() + "; rank " +
                            std::to_string(options_.rank.value()) + " waits for it in ";
  const std::string advice = AdviceFor(other);
  for (const CallId call : failing) {
    const CollectiveSpec& spec = calls_.At(call).exchange.collective().spec;
    Fail(now, call, {StatusCode::kUnavailable, waits + Describe(spec, call.sequence) + advice});
  }
  for (const CallId call : over) EraseIfRemovable(call);
  if (other.gone()) EraseUncalled(gone);
  FinishComplete(now);
  if (!undecided) return;
  membership_->Open()->Suspect(now, lane_, gone);
  FollowMembership(now);
}

void Endpoint::Impl::FinishComplete(Instant now) {
  std::vector<CallId> complete;
  for (const auto& [call, active] : calls_) {
    if (active.exchange.complete()) complete.push_back(call);
  }
  for (const CallId call : complete) {
    auto* const open = calls_.Find(call);
    if (open != nullptr) FinishIfComplete(now, *open);
  }
}

}  // namespace optireduce
