// The start of calls: the program has made one, and nothing keeps it from beginning; or a peer's
// datagram has come before the program did.

#include <algorithm>
#include <utility>

#include "ffi/protocol/lifecycle/call_lifecycle.h"

namespace optireduce {
namespace {

// Joins to a call what this rank has passed, and contributions to calls before that were never sent
// to members which are gone. True if there was anything.
bool Adopt(Collective& collective, BucketView& bucket) {
  std::uint64_t bytes = 0;
  for (Collective* before = collective.predecessor; before != nullptr;
       before = before->predecessor) {
    if (!before->deferred) continue;
    for (std::uint16_t m = 0; m < before->layout.members(); ++m) {
      if (collective.MemberOf(before->RankOf(MemberIndex(m)))) continue;
      bytes += before->deferred->MoveDeferredSends(MemberIndex(m), bucket);
    }
  }
  Collective& origin = collective.Origin();
  if (origin.passed) {
    bytes += origin.passed->MoveTo(bucket, SegmentIndex(0), origin.layout.segments());
  }
  return bytes > 0;
}

// Results of calls up to `last`, which the program has not made, may be under way.
void RecordMissedResults(Collective& collective, Sequence last) {
  for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
    collective.deferred->RecordResults(MemberIndex(m), last, /*complete=*/false);
  }
}

}  // namespace

void CallLifecycle::Begin(Instant now, Collective& collective, Submission submission) {
  admission_.RecordChange();
  counters_.calls_skipped += submission.skipped;
  const bool first = !collective.submitted;
  const std::uint32_t sequence = submission.sequence.value();
  const std::uint32_t next = first ? 0 : collective.submitted->value() + 1;
  // The program may jump over calls (step=).
  if (collective.deferred && sequence > next)
    RecordMissedResults(collective, Sequence(sequence - 1));
  collective.RecordSubmitted(submission.sequence);
  collective.averages_present = options_.catches_up() && submission.averages &&
                                OutlivesMembers(collective.spec) &&
                                collective.spec.element_type != ElementType::kInt32;
  if (collective.layout.members() == 1 || collective.spec.elements == 0) {
    MoveToPlace(submission.leaves, SizeOf(collective.spec.element_type));
    BucketView bucket(submission.leaves, SizeOf(collective.spec.element_type));
    Adopt(collective, bucket);
    collective.MoveLateResults(bucket);
    return Report({.token = submission.token,
                   .status = {},
                   .stats = {.elapsed = submission.pending_for,
                             .slowest = options_.rank,
                             .live = collective.layout.members(),
                             .number = submission.sequence,
                             .skipped = submission.skipped}});
  }
  if (first) transmitter_.Announce(collective, submission.sequence);
  SubmitTo(now, collective, std::move(submission));
}

bool CallLifecycle::Supersede(Instant now, const Collective& collective, Sequence next,
                              bool drain) {
  bool in_order = true;
  std::vector<CallId> overtaken;
  std::vector<CallId> skipped;
  calls_.ForEach(collective.id, [&](CallId earlier, OpenCall& open) {
    if (earlier.sequence >= next) return;
    Exchange& exchange = open.exchange;
    in_order = in_order && exchange.program().over();
    const bool too_old = earlier.sequence.value() + options_.max_lag < next.value();
    if (exchange.Supersede(now, too_old)) overtaken.push_back(earlier);
    if (exchange.program().uncalled()) skipped.push_back(earlier);
  });
  for (const CallId call : overtaken) {
    transmitter_.QueueAll(calls_.At(call));
    EraseIfRemovable(call);
  }
  for (const CallId call : skipped) Abandon(now, collective, call, drain);
  return in_order;
}

void CallLifecycle::SkipTo(Instant now, Collective& collective, Sequence next, bool drain) {
  if (!collective.deferred || next == Sequence(0)) return;
  Supersede(now, collective, next, drain);
  const Sequence last(next.value() - 1);
  collective.merged = std::max(collective.merged.value_or(last), last);
  admission_.RecordChange();
}

void CallLifecycle::Abandon(Instant now, const Collective& collective, CallId call, bool drain) {
  Exchange& exchange = calls_.At(call).exchange;
  if (drain && collective.deferred && !exchange.policy().Waits()) {
    // Its sums are part of the data that the drain brings: they go before it.
    exchange.Merge(now);
    RecordMerged(call);
  } else if (NeedsNoMember(collective.spec)) {
    calls_.Erase(call);
  } else if (collective.deferred) {
    Expire(now, call);
  }
}

void CallLifecycle::DropGonePeers(Instant now, const Collective& collective, Exchange& exchange) {
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || !peer(member).gone()) continue;
    const MemberIndex gone = *collective.MemberOf(member);
    const bool excluded = exchange.call().sequence == kFinalDrain ||
                          (exchange.policy().drains() && peer(member).removed());
    excluded ? exchange.Exclude(now, gone) : exchange.sender().DropPeer(gone);
  }
}

bool CallLifecycle::IsOverEverywhere(const Collective& collective, CallId call) {
  const OpenCall* const open = calls_.Find(call);
  if (open != nullptr) return open->exchange.program().merged();
  return collective.merged && call.sequence <= *collective.merged;
}

void CallLifecycle::SubmitTo(Instant now, Collective& collective, Submission submission) {
  const CallId call{.collective = collective.id, .sequence = submission.sequence};
  const bool in_order = Supersede(now, collective, call.sequence, submission.drain);
  if (IsOverEverywhere(collective, call)) return SubmitLate(submission, collective);
  // The call gets its values from more than one place.
  if (collective.predecessor != nullptr || collective.Origin().passed) {
    MoveToPlace(submission.leaves, SizeOf(collective.spec.element_type));
  }
  BucketView bucket(submission.leaves, SizeOf(collective.spec.element_type));
  const bool adopted = call.sequence != kFinalDrain && Adopt(collective, bucket);
  OpenCall* open = calls_.Find(call);
  const bool drains = submission.drain && RetainsLateData(collective.spec);
  if (open == nullptr) open = &calls_.Open(now, collective, call.sequence, drains);
  Exchange& exchange = open->exchange;
  if (drains) exchange.Drain();
  // A drain brings deferred data only: its own contribution is not retained.
  if (drains && adopted) collective.deferred->DeferAll(bucket);
  if (collective.deferred) collective.deferred->ResumeCaughtUp(call.sequence);
  exchange.Submit(now, submission, in_order);
  if (collective.deferred) DropGonePeers(now, collective, exchange);
  transmitter_.QueueAll(*open);
  transmitter_.RecordSubmitted();
  if (exchange.waiting()) waits_.Add(now, exchange);
  Status why = mismatch_.FindMismatched(exchange);
  if (why.ok() && exchange.waiting()) why = mismatch_.WhyGivenUp(collective, call.sequence);
  if (!why.ok()) return Fail(now, *open, std::move(why));
  lag_.HandleSubmitted(now, exchange);
  FinishIfComplete(now, *open);
}

void CallLifecycle::GiveUpUncalled(Instant now, Collective& collective, const Submission& call,
                                   const Status& why) {
  const Sequence sequence = call.sequence;
  if (!collective.submitted) transmitter_.Announce(collective, sequence);
  collective.submitted = sequence;
  if (collective.deferred) RecordMissedResults(collective, sequence);
  if (!WaitsForMembers(collective.spec, call.drain)) {
    // Peers need no error: the call ends by its deadline there.
    Supersede(now, collective, Sequence(sequence.value() + 1), /*drain=*/false);
    return;
  }
  // A peer may have opened it.
  OpenCall* const open = calls_.Find({.collective = collective.id, .sequence = sequence});
  if (open != nullptr) Erase(*open);
  // Whatever the reason: this rank is in no other call instead.
  mismatch_.ReportGivenUp(collective, sequence, ForPeers(why), /*disagreed=*/false);
}

OpenCall* CallLifecycle::Admit(Instant now, const Header& header) {
  if (OpenCall* const open = calls_.Find(header.call); open != nullptr) return open;
  Collective& collective = *directory_.Find(header.call.collective);
  const auto [decision, oldest] = admission_.Decide(collective, IsSuspended(header));
  if (decision == Admission::Decision::kMerge) {
    calls_.At(oldest).exchange.Merge(now);
    RecordMerged(oldest);
  }
  if (decision == Admission::Decision::kRefuse || !admission_.HasRoomFor(collective)) {
    return nullptr;
  }
  return &calls_.Open(now, collective, header.call.sequence,
                      RetainsLateData(collective.spec) && (header.flags & kFlagDrain) != 0);
}

}  // namespace optireduce
