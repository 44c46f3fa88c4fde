#include "ffi/protocol/session/call_table.h"

#include "ffi/base/check.h"
#include "ffi/schedule/tar.h"

namespace optireduce {

bool CallTable::HasCalled(const Collective& collective, Sequence sequence, bool drain,
                          Rank member) const {
  // A drain ends on no rank before all have called it, unless by an error.
  if (drain) return false;
  const OpenCall* const open = Find({.collective = collective.id, .sequence = sequence});
  return open != nullptr && open->exchange.heard(*collective.MemberOf(member));
}

OpenCall& CallTable::Open(Instant now, Collective& collective, Sequence sequence, bool drain) {
  const std::uint16_t members = collective.layout.members();
  std::vector<MemberIndex>& order = send_orders_[{members, collective.self}];
  if (order.empty()) order = TarSendOrder(members, collective.self);
  LateRules::Prepare(collective, options_, pool_);
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
