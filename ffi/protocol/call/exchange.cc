#include "ffi/protocol/call/exchange.h"

#include <algorithm>
#include <utility>

#include "ffi/base/check.h"

namespace optireduce {

Exchange::Exchange(Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
                   const ExchangeOptions& options)
    : collective_(collective),
      sequence_(sequence),
      opened_at_(now),
      lag_timeout_(options.lag_timeout),
      relay_segments_min_(options.relay_segments_min),
      pool_(pool),
      policy_(CallPolicy::Open(collective, sequence, now, options.drain)),
      codec_(collective, sequence, options.wire_format, options.drain, pool),
      reduce_scatter_(collective, policy_, codec_, pool),
      sender_(collective, policy_, codec_, reduce_scatter_, bucket_, pool, options.send_order),
      all_gather_(collective, policy_, sender_, bucket_, pool),
      report_(collective),
      heard_(collective.layout.members()),
      optional_(collective.layout.members()) {
  SpareAbsent();
}

void Exchange::SpareAbsent() {
  for (const MemberIndex member : policy_.FindAbsent()) {
    const bool self = member == collective_.self;
    const bool comes = self ? program_.submitted() : reduce_scatter_.received(member) > 0;
    if (comes || optional_[member.index()]) continue;
    optional_[member.index()] = true;
    reduce_scatter_.MakeOptional(member);
    if (!self && !policy_.Serves(member)) all_gather_.MakeOptional(member);
  }
}

bool Exchange::SpareAbsent(Instant now) {
  if (reduce_scatter_.closed() || policy_.drains()) return false;
  const std::size_t placed = placed_;
  SpareAbsent();
  reduce_scatter_.ReduceReady();
  PlaceSums(now);
  return placed_ != placed;
}

// ---- The local program.

void Exchange::Submit(Instant now, const Submission& submission, bool in_order) {
  OR_CHECK(!program_.submitted());
  Expire(now);
  program_.Submit(now, submission);
  bucket_ =
      BucketView(submission.leaves, SizeOf(collective_.spec.element_type), collective_.layout);
  // After the close contributions are of use only if they may be late.
  if (policy_.retains() || !reduce_scatter_.closed()) sender_.Submit();
  policy_.Submit(now, in_order);
  if (!reduce_scatter_.closed()) {
    RecordSelf(/*takes_part=*/true);
    SpareAbsent();
  }
  all_gather_.Submit(now, submission.quorum);
  sender_.RelaySums(FindRelays());
  reduce_scatter_.Submit(now, bucket_);
  PlaceSums(now);
}

std::vector<MemberIndex> Exchange::FindRelays() const {
  std::vector<MemberIndex> relays;
  if (!AllowsRelays() || collective_.others.size() < 2) return relays;
  // A quarter of their contributions is here: their links will be idle long before this one.
  // Chosen: ranks that start together have nothing of each other yet.
  const std::size_t segments = collective_.layout.SegmentsOf(collective_.self);
  for (const MemberIndex member : collective_.others) {
    if (4 * reduce_scatter_.NotReceived(member) <= 3 * segments) relays.push_back(member);
  }
  // While most of the others are as late, their links are as busy as this one.
  return 2 * relays.size() >= collective_.others.size() ? relays : std::vector<MemberIndex>();
}

void Exchange::Report(Instant now, bool ok) {
  CallStats& stats = report_.stats;
  const auto all = static_cast<double>(std::max<std::uint64_t>(collective_.result_bytes(), 1));
  std::uint64_t missed = report_.missing_bytes();
  for (const MemberIndex member : collective_.others) {
    missed += reduce_scatter_.MissedBytes(member);
  }
  if (policy_.retains()) {
    stats.deferred = static_cast<double>(all_gather_.DeferredBytes()) / all;
    stats.in_flight = sender_.InFlight();
    // Data that a drain has not brought was with a member that is gone.
    collective_.deferred->RecordMissed(ok && !policy_.drains() ? missed : 0);
  }
  stats.retransmitted = sender_.retransmitted();
  report_.FindSlowest(program_.submitted_at(), now, [this](MemberIndex member) {
    return reduce_scatter_.Missing(member) + all_gather_.NotReceived(member);
  });
  report_.FindMissing();
  stats.elapsed = now - program_.called_at();
  stats.number = sequence_;
  stats.skipped = program_.skipped();
  stats.rounded = codec_.rounds();
  stats.live = collective_.layout.members();
  if (policy_.CallDeadline() != kNever) stats.deadline = policy_.call_deadline();
  stats.deadline_needed = policy_.deadline_needed();
}

CallDone Exchange::Finish(Instant now, Status status) {
  OR_CHECK(program_.running());
  Report(now, status.ok());
  if (!policy_.retains()) sender_.StopContributing();
  if (status.ok()) {
    all_gather_.ZeroMissing();
    bucket_.Settle();
    collective_.MoveLateResults(bucket_);
    // An allreduce has retained each contribution before a result took its place.
    if (policy_.retains() && !HasAllGather(collective_.spec)) sender_.RetainContributions();
    if (!all_gather_.closed()) EndStage(now, Stage::kAllGather, StageExit::kComplete);
  } else {
    sender_.Fail();
  }
  program_.Finish();
  reduce_scatter_.Detach();
  bucket_ = BucketView();
  Retire();
  return {.token = program_.token(), .status = std::move(status), .stats = report_.stats};
}

// The call is over for the program.
void Exchange::Retire() {
  all_gather_.End();
  sender_.DeferRest(Stage::kReduceScatter);
  if (reduce_scatter_.finished()) sender_.DeferRest(Stage::kAllGather);
  if (!policy_.retains()) return;
  for (const MemberIndex member : collective_.others) {
    collective_.deferred->RecordResults(member, sequence_, all_gather_.NotReceived(member) == 0);
  }
  RecordPresence();
}

void Exchange::RecordSelf(bool takes_part) {
  if (collective_.presence != nullptr) collective_.presence->RecordSelf(takes_part);
}

void Exchange::RecordPresence() {
  // Calls need not end in their order.
  if (collective_.presence == nullptr || collective_.submitted != sequence_) return;
  Presence& presence = *collective_.presence;
  for (const MemberIndex member : collective_.others) {
    const Rank rank = collective_.RankOf(member);
    if (all_gather_.NotReceived(member) > 0) {
      presence.RecordMissedSums(rank, collective_.place);
    } else if (collective_.layout.SegmentsOf(member) > 0) {
      presence.RecordSums(rank, collective_.place);
    }
  }
  RecordMissed(collective_.place);
}

void Exchange::RecordMissed(Presence::Place place) {
  if (collective_.layout.SegmentsOf(collective_.self) == 0) return;
  for (const MemberIndex member : collective_.others) {
    if (!report_.Absent(member)) continue;
    collective_.presence->RecordMissed(collective_.RankOf(member), place);
  }
}

bool Exchange::Contributed() const {
  return std::ranges::all_of(collective_.others,
                             [this](MemberIndex to) { return sender_.Contributed(to); });
}

// ---- Peers.

void Exchange::HeardResult(MemberIndex from) {
  // The sums of an absent program show that its process answers.
  if (policy_.LosesLate()) return Heard(from);
  heard_[from.index()] = true;
  all_gather_.Require(from);
}

void Exchange::Heard(MemberIndex from) {
  heard_[from.index()] = true;
  // With this member the absent ones may be few.
  const bool first = reduce_scatter_.received(from) == 0;
  if (first && !reduce_scatter_.closed() && OutlivesMembers(collective_.spec)) SpareAbsent();
  if (!optional_[from.index()]) return;
  optional_[from.index()] = false;
  reduce_scatter_.Require(from);
  all_gather_.Require(from);
}

ArrivalOutcome Exchange::Handle(Instant now, MemberIndex from, const Header& header,
                                std::span<const std::byte> payload) {
  const std::size_t placed = placed_;
  const bool undelivered = !sender_.ContributionsDelivered(from);
  ArrivalOutcome outcome{.first = !heard(from)};
  outcome.receipt = Take(now, from, header, payload);
  if (outcome.receipt != Receipt::kNew) return outcome;
  const bool contribution = header.kind == DatagramKind::kContribution;
  if (!contribution && (header.flags & kFlagRelayed) != 0) {
    outcome.relayed = sender_.Relay(from, header.segment, payload);
  }
  if (ShowsCall(collective_.spec, header.kind)) report_.RecordArrival(now, from);
  if (contribution) {
    PlaceSums(now);
  } else {
    report_.RecordResult(collective_.layout.OwnerOf(header.segment), payload.size(),
                         header.contributors);
  }
  outcome.sums_added = placed_ != placed;
  outcome.contributions_delivered = undelivered && sender_.ContributionsDelivered(from);
  return outcome;
}

Receipt Exchange::Take(Instant now, MemberIndex from, const Header& header,
                       std::span<const std::byte> payload) {
  const bool contribution = header.kind == DatagramKind::kContribution;
  const CollectiveSpec& spec = collective_.spec;
  if (!(contribution ? HasReduceScatter(spec) : HasAllGather(spec))) return Receipt::kMismatched;
  const bool fits = contribution
                        ? collective_.layout.Fits(collective_.self, header.segment, payload.size())
                        : all_gather_.Fits(from, header, payload.size());
  if (!fits) return Receipt::kMismatched;
  contribution ? Heard(from) : HeardResult(from);
  policy_.HandleFlags(from, header);
  const Receipt receipt = contribution ? reduce_scatter_.Handle(now, from, header, payload)
                                       : all_gather_.Handle(now, from, header, payload);
  report_.stats.late += receipt == Receipt::kLate;
  return receipt;
}

void Exchange::PlaceSums(Instant now) {
  const std::vector<SegmentIndex>& sums = reduce_scatter_.sums();
  for (; placed_ < sums.size(); ++placed_) {
    const SegmentIndex segment = sums[placed_];
    const std::span<const std::byte> sum = reduce_scatter_.Sum(segment);
    all_gather_.Add(segment, sum, reduce_scatter_.HoldsDeferred(segment));
    report_.RecordResult(collective_.self, sum.size(), reduce_scatter_.contributors(segment));
  }
  if (!reduce_scatter_.closed() && reduce_scatter_.finished()) {
    CloseReduceScatter(now, StageExit::kComplete);
  }
}

bool Exchange::CloseNext(Instant now, MemberIndex to) {
  if (!reduce_scatter_.closing() || !sender_.WantsSum(to)) return false;
  reduce_scatter_.CloseNext();
  PlaceSums(now);
  return true;
}

void Exchange::Exclude(Instant now, MemberIndex gone) {
  OR_CHECK(program_.submitted() && policy_.drains());
  sender_.DropPeer(gone);
  reduce_scatter_.Exclude(gone);
  PlaceSums(now);
  all_gather_.Exclude(gone);
}

// ---- Time.

Instant Exchange::ReduceScatterEnd() const {
  const Instant deadline = policy_.ReduceScatterDeadline(reduce_scatter_.closing());
  if (!program_.submitted()) return deadline;
  return std::min(deadline,
                  policy_.EarlyEnd(Stage::kReduceScatter, reduce_scatter_.last_segments()));
}

Instant Exchange::CallEnd() const {
  const Instant deadline = policy_.CallDeadline();
  const bool reduced = reduce_scatter_.closed() || reduce_scatter_.finished();
  if (!reduced || !program_.submitted()) return deadline;
  // Nothing is missing but results of absent members.
  if (all_gather_.complete() && !all_gather_.full()) return opened_at_;
  if (!policy_.LosesLate()) return deadline;
  return std::min(deadline, policy_.EarlyEnd(Stage::kAllGather, all_gather_.last_segments()));
}

Instant Exchange::LagDeadline() const {
  if (!WaitsForLag()) return kNever;
  return SaturatingAdd(std::max(program_.submitted_at(), opened_at_ + policy_.call_deadline()),
                       lag_timeout_);
}

Instant Exchange::deadline() const {
  if (policy_.service_ended() || AwaitsProgram()) return kNever;
  // A segment that was closed for a peer may have been the last one that the program waited for.
  if (complete()) return opened_at_;
  Instant at = kNever;
  if (!reduce_scatter_.closed() && !reduce_scatter_.finished()) at = ReduceScatterEnd();
  if (!all_gather_.closed() && !program_.over()) at = std::min(at, CallEnd());
  return std::min({at, policy_.ServiceEndsAt(), LagDeadline()});
}

ExpiryOutcome Exchange::Expire(Instant now) {
  ExpiryOutcome outcome;
  if (AwaitsProgram()) return outcome;
  const std::size_t placed = placed_;
  outcome.stages_expired = ExpireReduceScatter(now) + ExpireCall(now);
  outcome.merged = program_.abandoned() && CanMerge();
  if (outcome.merged) Merge(now);
  if (now >= LagDeadline()) collective_.deferred->SuspendLagging(sequence_);
  if (now >= policy_.ServiceEndsAt()) EndService();
  outcome.sums_added = placed_ != placed;
  return outcome;
}

bool Exchange::ExpireReduceScatter(Instant now) {
  if (reduce_scatter_.closed() || now < ReduceScatterEnd()) return false;
  const bool expires = !reduce_scatter_.finished() && !reduce_scatter_.closing();
  if (expires && policy_.ClosesInTurns()) reduce_scatter_.BeginClosing();
  if (expires && program_.uncalled()) {
    RecordSelf(/*takes_part=*/false);
    if (collective_.presence != nullptr) RecordMissed(collective_.presence->Call());
  }
  if (now >= policy_.ReduceScatterDeadline(reduce_scatter_.closing())) {
    CloseReduceScatter(now, StageExit::kExpired);
  } else if (!reduce_scatter_.closing()) {
    CloseReduceScatter(now, StageExit::kEarly);
  }
  return expires;
}

bool Exchange::ExpireCall(Instant now) {
  if (all_gather_.closed() || program_.over() || now < CallEnd()) return false;
  all_gather_.Close();
  const bool complete = all_gather_.complete();
  EndStage(now, Stage::kAllGather,
           complete                        ? StageExit::kComplete
           : now >= policy_.CallDeadline() ? StageExit::kExpired
                                           : StageExit::kEarly);
  return !complete;
}

void Exchange::CloseReduceScatter(Instant now, StageExit exit) {
  if (program_.uncalled()) RecordSelf(/*takes_part=*/false);
  reduce_scatter_.Close();
  EndStage(now, Stage::kReduceScatter, exit);
  PlaceSums(now);
  if (program_.over()) sender_.DeferRest(Stage::kAllGather);
}

void Exchange::EndStage(Instant now, Stage stage, StageExit exit) {
  if (!policy_.LosesLate() || !program_.submitted() || report_.stats.passed) return;
  const BucketLayout& layout = collective_.layout;
  const bool first = stage == Stage::kReduceScatter;
  // From the opening, as the deadlines count: a program that starts later than its peers is waited
  // for as usual.
  StageEnd end{.exit = exit, .elapsed = now - opened_at_};
  const LastSegments& last = first ? reduce_scatter_.last_segments() : all_gather_.last_segments();
  if (exit == StageExit::kEarly) end.idle = now - last.last();
  for (const MemberIndex member : collective_.others) {
    const MemberIndex shard = first ? collective_.self : member;
    const std::uint64_t segments = layout.SegmentsOf(shard);
    if (optional_[member.index()] || segments == 0) continue;
    const std::uint64_t bytes = layout.Shard(shard).bytes;
    const std::uint64_t received =
        first ? reduce_scatter_.received(member) : segments - all_gather_.NotReceived(member);
    end.expected_bytes += bytes;
    end.received_bytes += bytes * received / segments;
  }
  policy_.EndStage(stage, end);
}

// ---- The end.

void Exchange::EndService() {
  policy_.EndService();
  all_gather_.Close();
  // A peer that opened this call at the same time has closed it too.
  sender_.DropAllPeers();
}

void Exchange::Pass(Instant now) {
  report_.stats.passed = true;
  if (!reduce_scatter_.closed()) CloseReduceScatter(now, StageExit::kExpired);
  EndService();
}

bool Exchange::removable() const {
  if (!program_.over()) return false;
  return (reduce_scatter_.finished() || !policy_.retains()) &&
         std::ranges::all_of(collective_.others,
                             [this](MemberIndex member) { return sender_.Served(member); });
}

bool Exchange::Supersede(Instant now, bool too_old) {
  if (program_.uncalled()) program_.Abandon();
  if (!program_.over()) return false;
  // Each call holds a whole block, until its deadline.
  if (too_old && policy_.LosesLate() && !HasReduceScatter(collective_.spec)) EndService();
  bool trimmed = false;
  if (program_.finished()) {
    for (const MemberIndex member : collective_.others) {
      if (optional_[member.index()] && policy_.LosesLate()) sender_.ConfirmResults(member);
    }
    // It has failed before its deadline.
    const bool open = policy_.retains() && !reduce_scatter_.finished();
    if (open) CloseReduceScatter(now, StageExit::kExpired);
    trimmed = open || removable();
  }
  reduce_scatter_.Compact(pool_);
  return trimmed;
}

void Exchange::Remember() {
  if (!policy_.retains()) return;
  for (const MemberIndex member : collective_.others) {
    policy_.Remember(Stage::kReduceScatter, member, reduce_scatter_.received_bitmap(member));
    policy_.Remember(Stage::kAllGather, member, all_gather_.ReceivedOf(member));
  }
}

void Exchange::Merge(Instant now) {
  if (!reduce_scatter_.closed()) CloseReduceScatter(now, StageExit::kExpired);
  OR_CHECK(CanMerge());
  all_gather_.DeferAll(reduce_scatter_);
  program_.Merge();
  Retire();
}

void Exchange::Drain() {
  if (!reduce_scatter_.Drain()) return;
  policy_.Drain();
  codec_.Drain();
}

std::uint64_t Exchange::UndeliveredBytes() const {
  if (!program_.over() || policy_.drains()) return 0;
  return sender_.UndeliveredBytes(policy_.ContinuesLate() && reduce_scatter_.finished());
}

}  // namespace optireduce
