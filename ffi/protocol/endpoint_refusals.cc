// Data for calls that the local program has not made: what of it is taken, and what is refused.

#include <utility>

#include "ffi/protocol/endpoint_impl.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Its sender does not wait for this rank.
bool IsSuspended(const Header& header) { return (header.flags & kFlagSuspended) != 0; }

}  // namespace

bool Endpoint::Impl::IsOver(const Collective& collective, Sequence sequence) const {
  const bool called = (collective.submitted && sequence <= *collective.submitted) ||
                      (collective.folded && sequence <= *collective.folded);
  return called && !calls_.Contains({.collective = collective.id, .sequence = sequence});
}

Endpoint::Impl::Ahead Endpoint::Impl::AheadOf(const Collective& collective) {
  Ahead ahead;
  calls_.ForEach(collective.id, [&](CallId call, OpenCall& active) {
    if (active.exchange.submitted() || active.exchange.over()) return;
    ++ahead.calls;
    if (!ahead.foldable && active.exchange.CanFold()) ahead.foldable = call;
  });
  return ahead;
}

bool Endpoint::Impl::HasRoomFor(const Collective& collective) const {
  return HasRoom(collective.layout.Shard(collective.self).bytes *
                 (collective.layout.members() - 1u));
}

bool Endpoint::Impl::Takes(CallId call, bool suspended) {
  const Collective* collective = directory_.Find(call.collective);
  if (collective == nullptr) return false;
  if (IsOver(*collective, call.sequence) || IsAbandoned(*collective)) return true;
  auto* const open = calls_.Find(call);
  if (open != nullptr) return HasRoom(open->exchange.EarlyResultBytes());
  const Ahead ahead = AheadOf(*collective);
  const bool folds = suspended && ahead.foldable;
  return (ahead.calls < options_.max_lag || folds) && HasRoomFor(*collective);
}

void Endpoint::Impl::Refuse(Instant now, const Header& header) {
  ++counters_.rejected_early;
  const bool news = refusals_.Add(header.call, header.source, IsSuspended(header));
  if (news) peer(header.source).flow.AcknowledgeAtOnce(now);
}

void Endpoint::Impl::LiftRefusals(Instant now) {
  const bool freed = pool_.used_bytes() < refusals_used_bytes_;
  refusals_used_bytes_ = pool_.used_bytes();
  if (refusals_.empty() || !(freed || std::exchange(refusals_stale_, false))) return;
  refusals_.Lift([&](CallId call, bool suspended) { return Takes(call, suspended); },
                 [&](Rank rank) { peer(rank).flow.AcknowledgeAtOnce(now); });
}

OpenCall* Endpoint::Impl::Admit(Instant now, const Header& header) {
  if (auto* const open = calls_.Find(header.call); open != nullptr) return open;
  // Ahead of the local program: bounded in calls and in memory.
  Collective& collective = *directory_.Find(header.call.collective);
  const Ahead ahead = AheadOf(collective);
  const bool full = ahead.calls >= options_.max_lag;
  const bool folds = full && IsSuspended(header) && ahead.foldable;
  if (folds) {
    calls_.At(*ahead.foldable).exchange.Fold();
    NoteFolded(*ahead.foldable);
  }
  if ((full && !folds) || !HasRoomFor(collective)) return nullptr;
  return &Open(now, collective, header.call.sequence,
               Defers(collective.spec) && (header.flags & kFlagDrain) != 0);
}

}  // namespace optireduce
