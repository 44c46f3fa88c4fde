#include "ffi/protocol/session/call_table.h"

#include <algorithm>

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

WireFormat CallTable::ChooseFormat(Instant now, Collective& collective) const {
  if (collective.spec.wire_format != WireFormat::kAuto) return collective.spec.wire_format;
  return collective.format.Choose(now, WireTime(collective), collective.layout.bytes());
}

Duration CallTable::WireTime(const Collective& collective) const {
  const BucketLayout& layout = collective.layout;
  double longest_ns = 0;
  for (const MemberIndex member : collective.others) {
    const double rate = peers_[collective.RankOf(member)]->flow.rate();
    if (rate == 0) continue;
    const auto bytes =
        static_cast<double>(layout.Shard(member).bytes + layout.Shard(collective.self).bytes);
    longest_ns = std::max(longest_ns, bytes / rate);
  }
  return Duration(static_cast<Duration::rep>(longest_ns));
}

OpenCall& CallTable::Open(Instant now, Collective& collective, Sequence sequence, bool drain) {
  const std::uint16_t members = collective.layout.members();
  std::vector<MemberIndex>& order = send_orders_[{members, collective.self}];
  if (order.empty()) order = TarSendOrder(members, collective.self);
  CallPolicy::Prepare(collective, options_, pool_);
  const ExchangeOptions options{.send_order = order,
                                .lag_timeout = options_.peer_timeout,
                                .drain = drain,
                                .wire_format = ChooseFormat(now, collective),
                                .relay_segments_min = options_.relay_segments_min};
  const auto [at, inserted] =
      calls_.try_emplace({.collective = collective.id, .sequence = sequence}, collective, sequence,
                         now, pool_, options);
  OR_CHECK(inserted);
  OpenCall& opened = at->second;
  if (!collective.deferred) return opened;
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || !peers_[member]->gone()) continue;
    opened.exchange.sender().ConfirmResults(*collective.MemberOf(member));
  }
  return opened;
}

}  // namespace optireduce
