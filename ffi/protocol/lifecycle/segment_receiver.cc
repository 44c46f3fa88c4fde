#include "ffi/protocol/lifecycle/segment_receiver.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ffi/protocol/call/call_policy.h"
#include "ffi/protocol/call/exchange.h"
#include "ffi/protocol/call/segment_codec.h"

namespace optireduce {

bool SegmentReceiver::Handle(Instant now, const Header& header,
                             std::span<const std::byte> encoded) {
  Collective* const collective = session_.directory.Find(header.call.collective);
  if (collective == nullptr) {
    // Its announcement is still under way.
    admission_.Refuse(now, header);
    return false;
  }
  const std::optional<MemberIndex> from = collective->MemberOf(header.source);
  if (!from) {
    ++session_.counters.rejected_mismatched;
    return false;
  }
  Header each = header;
  do {
    const std::size_t bytes = SegmentCodec::FirstBytes(*collective, each, encoded.size());
    if (!HandleOne(now, *collective, *from, each, encoded.first(bytes))) return false;
    ++session_.peers[header.source]->traffic.segments_received;
    encoded = encoded.subspan(bytes);
    each.segment = SegmentIndex(each.segment.value() + 1);
  } while (!encoded.empty());
  return true;
}

bool SegmentReceiver::HandleOne(Instant now, Collective& collective, MemberIndex from,
                                const Header& header, std::span<const std::byte> encoded) {
  const auto values = SegmentCodec::Decode(collective, header, encoded, decoded_);
  if (!values) {
    ++session_.counters.rejected_mismatched;
    return false;
  }
  const Sequence call = header.call.sequence;
  lifecycle_.Apply(now, lag_.RecordAttendance(now, collective, from, call, /*past=*/false));
  if (ShowsCall(collective.spec, header.kind)) {
    collective.RecordCalled(now, from, call);
    collective.RecordPresent(from, call);
  } else if (header.contributors > 0 && call != kFinalDrain) {
    // Some member has made the call: contributions come to owners only.
    collective.Origin().others_calls.Record(now, call);
  }
  return HandleValues(now, collective, from, header, *values);
}

bool SegmentReceiver::HandleValues(Instant now, Collective& collective, MemberIndex from,
                                   const Header& header, std::span<const std::byte> payload) {
  if (admission_.IsOver(collective, header.call.sequence)) {
    lag_.AnswerPast(collective, from, header.call.sequence);
    Count(CallPolicy::HandleOver(now, collective, from, header, payload), header.source);
    return true;
  }
  if (admission_.IsAbandoned(collective)) {
    ++session_.counters.segments_stale;
    return true;
  }
  OpenCall* const open = lifecycle_.Admit(now, header);
  const bool contribution = header.kind == DatagramKind::kContribution;
  if (open == nullptr ||
      (!contribution && !admission_.HasRoom(open->exchange.all_gather().EarlyBytes()))) {
    admission_.Refuse(now, header);
    return false;
  }
  return HandleOpen(now, *open, from, header, payload);
}

bool SegmentReceiver::HandleOpen(Instant now, OpenCall& open, MemberIndex from,
                                 const Header& header, std::span<const std::byte> payload) {
  Exchange& exchange = open.exchange;
  const Collective& collective = exchange.collective();
  if ((header.flags & kFlagDrain) != 0 && collective.deferred) exchange.Drain();
  const ArrivalOutcome outcome = exchange.Handle(now, from, header, payload);
  if (outcome.receipt != Receipt::kNew) {
    Count(outcome.receipt, header.source);
    return outcome.receipt != Receipt::kMismatched;
  }
  if (!HasAllGather(collective.spec) && exchange.reduce_scatter().NotReceived(from) == 0) {
    // No result will show the sender that its contributions have come: it may wait for this.
    session_.peers.Touch(header.source).flow.received().AcknowledgeAtOnce(now);
  }
  session_.counters.segments_relayed += outcome.relayed;
  if (outcome.sums_added || outcome.relayed) transmitter_.QueueAll(open);
  // A peer in the same call of the same name with other facts disagrees with the local program.
  if (outcome.first && !exchange.program().submitted()) {
    lifecycle_.Apply(now, mismatch_.FindMismatched(collective.spec.name, header.call.sequence));
  }
  lifecycle_.FinishIfComplete(now, open);
  if (outcome.contributions_delivered) lifecycle_.Advance(now, collective.id, header.source);
  if (outcome.first && ShowsCall(collective.spec, header.kind))
    lifecycle_.ConfirmEarlierCalls(now, header);
  return true;
}

void SegmentReceiver::Count(Receipt receipt, Rank from) {
  Counters& counters = session_.counters;
  switch (receipt) {
    case Receipt::kNew:
      return;
    case Receipt::kDuplicate:
      ++counters.segments_duplicate;
      return;
    case Receipt::kLate:
      ++counters.segments_late;
      ++session_.peers[from]->traffic.segments_late;
      return;
    case Receipt::kStale:
      ++counters.segments_stale;
      return;
    case Receipt::kMismatched:
      ++counters.rejected_mismatched;
      return;
  }
}

}  // namespace optireduce
