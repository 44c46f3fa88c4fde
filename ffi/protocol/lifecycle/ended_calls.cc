// The part of CallLifecycle for calls that are over for the program, of collectives that defer.

#include <algorithm>
#include <utility>
#include <vector>

#include "ffi/protocol/collective/policy_traits.h"
#include "ffi/protocol/lifecycle/call_lifecycle.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// The bucket of a call, with this rank's values in it.
BucketView InPlace(const Submission& submission) {
  const std::size_t element_bytes = SizeOf(submission.spec.element_type);
  std::vector<Leaf> leaves = submission.leaves;
  MoveToPlace(leaves, element_bytes);
  return {leaves, element_bytes};
}

}  // namespace

void CallLifecycle::SubmitLate(const Submission& submission, Collective& collective) {
  // Results of it may still be under way.
  for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
    collective.deferred->RecordResults(MemberIndex(m), submission.sequence, /*complete=*/false);
  }
  collective.deferred->RecordMissed(0);
  if (OutlivesMembers(collective.spec)) return Pass(submission, collective.Origin(), collective);
  BucketView bucket = InPlace(submission);
  collective.deferred->DeferAll(bucket);
  ReportPassed(submission, collective, bucket);
}

void CallLifecycle::Pass(const Submission& submission, Collective& origin, Collective& in_view) {
  BucketView bucket = InPlace(submission);
  if (!origin.passed) {
    origin.passed = std::make_unique<SegmentStore>(
        origin.layout, SegmentIndex(0), origin.layout.segments(), origin.spec.element_type, pool_);
  }
  origin.passed->TakeFrom(bucket);
  ReportPassed(submission, in_view, bucket);
}

void CallLifecycle::ReportPassed(const Submission& submission, Collective& in_view,
                                 BucketView& bucket) {
  CallStats stats{.missing_results = 1.0,
                  .in_flight = 1.0,
                  .elapsed = submission.pending_for,
                  .slowest = options_.rank,
                  .live = in_view.layout.members(),
                  .passed = true,
                  .number = submission.sequence,
                  .skipped = submission.skipped};
  const auto all = static_cast<double>(std::max<std::uint64_t>(in_view.result_bytes(), 1));
  stats.deferred = std::min(static_cast<double>(in_view.MoveLateResults(bucket)) / all, 1.0);
  ++counters_.calls_completed;
  events_.push_back({.token = submission.token, .status = {}, .stats = stats});
}

void CallLifecycle::RecordMerged(CallId call) {
  admission_.RecordChange();
  Collective& collective = *directory_.Find(call.collective);
  collective.merged = std::max(collective.merged.value_or(call.sequence), call.sequence);
  transmitter_.QueueAll(calls_.At(call));
  EraseIfRemovable(call);
}

void CallLifecycle::ConfirmEarlierCalls(Instant now, const Header& header) {
  const CallId call = header.call;
  const Collective& collective = *directory_.Find(call.collective);
  const MemberIndex from = *collective.MemberOf(header.source);
  const std::uint32_t before = CallPolicy::CallsWithResults(collective, header);
  std::vector<CallId> released;
  calls_.ForEach(call.collective, [&](CallId earlier, OpenCall& active) {
    if (earlier >= call || earlier.sequence.value() < call.sequence.value() - before) return;
    active.exchange.sender().ConfirmResults(from);
    if (!collective.deferred) active.exchange.sender().DropPeer(from);
    released.push_back(earlier);
  });
  for (const CallId earlier : released) EraseIfRemovable(earlier);
  if (!released.empty()) Advance(now, call.collective, header.source);
}

std::vector<LateData> CallLifecycle::FindLateData() const {
  std::vector<LateData> late;
  directory_.ForEach([&](const Collective& collective) {
    if (HoldsValues(collective.spec)) return;
    std::uint64_t bytes = collective.passed ? collective.passed->held_bytes() : 0;
    if (collective.deferred) bytes += collective.deferred->LateBytes();
    calls_.ForEach(collective.id, [&](CallId, const OpenCall& open) {
      if (!collective.deferred) return;
      bytes += open.exchange.UndeliveredBytes();
    });
    if (bytes > 0) late.push_back({.description = collective.spec.description, .bytes = bytes});
  });
  return late;
}

void CallLifecycle::Advance(Instant now, CollectiveId id, Rank to) {
  const Collective& collective = *directory_.Find(id);
  // Where results come, they complete a call.
  if (!collective.deferred && HasAllGather(collective.spec)) return;
  const MemberIndex member = *collective.MemberOf(to);
  std::vector<CallId> complete;
  calls_.ForEach(id, [&](CallId call, OpenCall& active) {
    transmitter_.Queue(active, member);
    if (active.exchange.complete()) complete.push_back(call);
  });
  for (const CallId call : complete) {
    auto* const open = calls_.Find(call);
    if (open != nullptr) FinishIfComplete(now, *open);
  }
}

}  // namespace optireduce
