#include "ffi/protocol/session/call_table.h"

#include <memory>

#include "ffi/base/check.h"
#include "ffi/schedule/tar.h"

namespace optireduce {

bool CallTable::HasCalled(const Collective& collective, const Submission& submission,
                          Rank member) const {
  // A drain ends on no rank before all have called it, unless by an error.
  if (submission.drain) return false;
  const OpenCall* const open = Find({.collective = collective.id, .sequence = submission.sequence});
  return open != nullptr && open->exchange.heard(*collective.MemberOf(member));
}

void CallTable::MakeTiming(Collective& collective) {
  const CollectiveSpec& spec = collective.spec;
  if (spec.reduce_scatter != LatePolicy::kWait && !collective.timing) {
    collective.timing = std::make_unique<CallTiming>(spec, collective.self, options_.late_budget,
                                                     options_.suspend_on_lag);
  }
  if (Defers(spec) && !collective.deferred) {
    collective.deferred =
        std::make_unique<DeferredData>(collective.layout, collective.self, spec.element_type,
                                       options_.max_lag, options_.suspend_on_lag, pool_);
  }
}

OpenCall& CallTable::Open(Instant now, Collective& collective, Sequence sequence, bool drain) {
  const std::uint16_t members = collective.layout.members();
  std::vector<MemberIndex>& order = send_orders_[{members, collective.self}];
  if (order.empty()) order = TarSendOrder(members, collective.self);
  MakeTiming(collective);
  const ExchangeOptions options{
      .send_order = order, .lag_timeout = options_.peer_timeout, .drain = drain};
  const auto [at, inserted] =
      calls_.try_emplace({.collective = collective.id, .sequence = sequence}, collective, sequence,
                         now, pool_, options);
  OR_CHECK(inserted);
  OpenCall& opened = at->second;
  if (!collective.deferred) return opened;
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || !peers_[member]->gone()) continue;
    opened.exchange.sender().ReleaseResults(*collective.MemberOf(member));
  }
  return opened;
}

}  // namespace optireduce
