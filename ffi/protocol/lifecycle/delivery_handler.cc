#include "ffi/protocol/lifecycle/delivery_handler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ffi/protocol/call/exchange.h"

namespace optireduce {

void DeliveryHandler::Handle(Instant now, Rank to, const std::vector<Delivery>& deliveries) {
  Peer& peer = session_.peers.Touch(to);
  std::vector<CollectiveId> advanced;
  for (const Delivery& delivery : deliveries) {
    const SentInfo& info = delivery.info;
    const bool lost = delivery.outcome == Delivery::Outcome::kLost;
    if (info.kind == DatagramKind::kLeave) {
      peer.farewell = lost ? Peer::Farewell::kWanted : Peer::Farewell::kDelivered;
    } else if (IsAnnouncement(info.kind)) {
      // That a rank waits is reported again anyway. An announcement that is refused is never taken.
      if (!lost || info.kind == DatagramKind::kWaiting || peer.gone()) continue;
      peer.control.push_back(info);
    } else if (info.kind == DatagramKind::kProbe) {
      peer.answered = peer.answered || !lost;
      if (!lost) peer.passed_bytes = std::max<std::size_t>(peer.passed_bytes, info.bytes);
    } else {
      HandleOne(now, to, delivery, advanced);
    }
  }
  for (const CollectiveId collective : advanced) lifecycle_.Advance(now, collective, to);
}

void DeliveryHandler::HandleOne(Instant now, Rank to, const Delivery& delivery,
                                std::vector<CollectiveId>& advanced) {
  const SentInfo& info = delivery.info;
  const bool refused = delivery.outcome == Delivery::Outcome::kRefused;
  const bool delivered = delivery.outcome == Delivery::Outcome::kDelivered;
  RefusedCalls& refused_calls = session_.peers.Touch(to).refused_calls;
  if (refused) refused_calls.Refused(now, info.call);
  if (delivered) refused_calls.Delivered(info.call);
  OpenCall* const open = session_.calls.Find(info.call);
  if (open == nullptr) return;
  Exchange& exchange = open->exchange;
  const MemberIndex member = *exchange.collective().MemberOf(to);
  for (std::uint8_t i = 0; i < info.segments; ++i) {
    const Outbox::Item item{.kind = info.kind,
                            .segment = SegmentIndex(info.segment.value() + i),
                            .retransmission = true};
    if (!delivered) {
      HandleLoss(to, *open, member, item, refused);
    } else if (exchange.sender().HandleDelivery(member, item)) {
      advanced.push_back(info.call.collective);
    }
  }
  lifecycle_.EraseIfRemovable(info.call);
}

void DeliveryHandler::HandleLoss(Rank to, OpenCall& open, MemberIndex member,
                                 const Outbox::Item& item, bool refused) {
  Counters& counters = session_.counters;
  if (open.exchange.sender().HandleLoss(member, item, refused) !=
      CallSender::Retransmission::kAgain) {
    ++counters.segments_abandoned;
    return;
  }
  ++(refused ? counters.segments_refused : counters.segments_retransmitted);
  if (!refused) ++session_.peers[to]->traffic.segments_retransmitted;
  transmitter_.Queue(open, member);
}

}  // namespace optireduce
