#include "ffi/protocol/session/admission.h"

#include <utility>

namespace optireduce {

bool Admission::IsOver(const Collective& collective, Sequence sequence) const {
  const bool called = (collective.submitted && sequence <= *collective.submitted) ||
                      (collective.merged && sequence <= *collective.merged);
  return called && !session_.calls.Contains({.collective = collective.id, .sequence = sequence});
}

Admission::Answer Admission::Decide(const Collective& collective, bool suspended) const {
  std::uint32_t ahead = 0;
  std::optional<CallId> mergeable;
  std::as_const(session_.calls).ForEach(collective.id, [&](CallId call, const OpenCall& open) {
    if (!open.exchange.program().uncalled()) return;
    ++ahead;
    if (!mergeable && open.exchange.CanMerge()) mergeable = call;
  });
  if (ahead < session_.options.max_lag) return {.decision = Decision::kOpen};
  if (suspended && mergeable) return {.decision = Decision::kMerge, .oldest = *mergeable};
  return {.decision = Decision::kRefuse};
}

void Admission::Refuse(Instant now, const Header& header) {
  ++session_.counters.rejected_early;
  const bool unknown = refusals_.Add(header.call, header.source, IsSuspended(header));
  if (unknown) session_.peers.Touch(header.source).flow.received().AcknowledgeAtOnce(now);
}

bool Admission::Takes(CallId call, bool suspended) const {
  const Collective* const collective = session_.directory.Find(call.collective);
  if (collective == nullptr) return false;
  if (IsOver(*collective, call.sequence) || IsAbandoned(*collective)) return true;
  const OpenCall* const open = session_.calls.Find(call);
  if (open != nullptr) return HasRoom(open->exchange.all_gather().EarlyBytes());
  return Decide(*collective, suspended).decision != Decision::kRefuse && HasRoomFor(*collective);
}

void Admission::Lift(Instant now) {
  const bool freed = session_.pool.used_bytes() < used_bytes_;
  used_bytes_ = session_.pool.used_bytes();
  if (refusals_.empty() || !(freed || std::exchange(changed_, false))) return;
  refusals_.Lift(
      [&](CallId call, bool suspended) { return Takes(call, suspended); },
      [&](Rank rank) { session_.peers.Touch(rank).flow.received().AcknowledgeAtOnce(now); });
}

}  // namespace optireduce
