#include "ffi/protocol/call/call_policy.h"

#include <algorithm>
#include <utility>

#include "ffi/protocol/wire/sender_info.h"

namespace optireduce {
namespace {

LatePolicy PolicyOf(const CollectiveSpec& spec, Stage stage) {
  return stage == Stage::kReduceScatter ? spec.reduce_scatter : spec.all_gather;
}

}  // namespace

CallPolicy::CallPolicy(Collective& collective, Sequence sequence, Instant opened_at, bool drain)
    : collective_(collective),
      sequence_(sequence),
      opened_at_(opened_at),
      drain_(drain),
      deferred_(collective.deferred.get()),
      timing_(collective.timing.get()) {}

void CallPolicy::Prepare(Collective& collective, const EndpointOptions& options, BufferPool& pool) {
  const CollectiveSpec& spec = collective.spec;
  if (HasDeadlines(spec) && !collective.timing) {
    collective.timing = std::make_unique<CallTiming>(spec, collective.self, options.late_budget,
                                                     options.catches_up());
    const Collective* before = collective.predecessor;
    if (before != nullptr && before->timing) {
      collective.timing->ContinueFrom(*before->timing);
    } else if (collective.earlier_timing != nullptr) {
      collective.timing->ContinueFrom(*collective.earlier_timing);
    }
  }
  if (RetainsLateData(spec) && !collective.deferred) {
    collective.deferred =
        std::make_unique<DeferredData>(collective.layout, collective.self, spec.element_type,
                                       options.max_lag, options.catches_up(), pool);
  }
}

CallPolicy CallPolicy::Open(Collective& collective, Sequence sequence, Instant now, bool drain) {
  CallPolicy policy(collective, sequence, now, drain);
  if (policy.timing_ == nullptr) return policy;
  policy.timing_->Open(now);
  policy.reduce_scatter_deadline_ = policy.timing_->reduce_scatter_deadline();
  policy.call_deadline_ = policy.timing_->call_deadline();
  if (!policy.retains()) return policy;
  policy.deferred_->RecordOpening(sequence, now);
  for (auto& began : policy.began_) began.assign(collective.layout.members(), kNever);
  policy.complete_before_.resize(collective.layout.members());
  return policy;
}

void CallPolicy::Submit(Instant now, bool in_order) {
  if (!retains()) return;
  submitted_at_ = now;
  for (const MemberIndex member : collective_.others) {
    if (!in_order) break;
    complete_before_[member.index()] = deferred_->CompleteBefore(member, sequence_);
  }
  const Duration after_opening = now - opened_at_;
  timing_->Began(Stage::kReduceScatter, collective_.self, after_opening);
  if (collective_.layout.SegmentsOf(collective_.self) > 0) {
    timing_->Began(Stage::kAllGather, collective_.self, after_opening);
  }
  timing_->Arrived(Stage::kReduceScatter, collective_.self, after_opening, Duration(0), 1.0);
}

bool CallPolicy::Windowed(Stage stage) const {
  // A call can be over, given up, before any call of its collective has opened.
  return retains() && PolicyOf(collective_.spec, stage) == LatePolicy::kDefer;
}

LatePolicy CallPolicy::policy(Stage stage) const {
  const LatePolicy of_spec = PolicyOf(collective_.spec, stage);
  return drain_ && of_spec != LatePolicy::kNoStage ? LatePolicy::kWait : of_spec;
}

bool CallPolicy::MaySend(Stage stage, MemberIndex to) const {
  if (!Windowed(stage)) return true;
  const SendWindow& window = deferred_->sending(stage, to).window;
  if (window.Begun(sequence_)) return true;
  // Data of a drain shows that everything before it has come.
  return drain_ ? window.all_delivered() : window.MayBegin(sequence_);
}

std::unique_ptr<SegmentStore> CallPolicy::Begin(Stage stage, MemberIndex to) {
  if (!Unsent(stage, to)) return nullptr;
  deferred_->sending(stage, to).window.Begin(sequence_);
  return deferred_->PopDeferredSends(stage, to);
}

bool CallPolicy::Unsent(Stage stage, MemberIndex to) const {
  return Windowed(stage) && !deferred_->sending(stage, to).window.Begun(sequence_);
}

void CallPolicy::Deliver(Stage stage, MemberIndex to) {
  if (Windowed(stage)) deferred_->sending(stage, to).window.Deliver(sequence_);
}

std::uint16_t CallPolicy::SenderInfoFor(Instant now, MemberIndex to, SegmentIndex segment) const {
  if (retains()) {
    return EncodeSenderInfo(
        {.calls_with_results = complete_before_[to.index()], .since_call = now - submitted_at_});
  }
  if (timing_ == nullptr) return 0;
  return timing_->SampleFor({.collective = collective_.id, .sequence = sequence_}, segment);
}

std::uint8_t CallPolicy::FlagsFor(MemberIndex to) const {
  if (LosesLate()) return timing_->calibrating() ? kFlagMeasures : std::uint8_t{0};
  if (!retains()) return 0;
  return static_cast<std::uint8_t>((drain_ ? kFlagDrain : 0) |
                                   (deferred_->suspended(to) ? kFlagSuspended : 0));
}

void CallPolicy::HandleSenderInfo(MemberIndex from, const Header& header) {
  if (LosesLate()) timing_->HandleSample(from, header.call, header.segment, header.sender_info);
}

void CallPolicy::HandleFlags(MemberIndex from, const Header& header) {
  if (LosesLate()) timing_->HandleMeasures(from, (header.flags & kFlagMeasures) != 0);
}

std::uint32_t CallPolicy::CallsWithResults(const Collective& collective, const Header& header) {
  if (NeedsNoMember(collective.spec)) return 0;
  const std::uint32_t before = header.call.sequence.value();
  // Where results are waited for, a later call proves that all before are there.
  if (WaitsForMembers(collective.spec, /*drain=*/false)) return before;
  return std::min(DecodeSenderInfo(header.sender_info).calls_with_results, before);
}

bool CallPolicy::Retransmits(Stage stage, MemberIndex to) const {
  if (policy(stage) != LatePolicy::kDrop) return true;
  // Nothing estimates a value that an all_gather lacks.
  if (!HasReduceScatter(collective_.spec)) return !service_ended_;
  // The first calls measure the time until everything is there.
  return !service_ended_ && (timing_->calibrating() || timing_->measures(to));
}

Instant CallPolicy::ReduceScatterDeadline(bool closing) const {
  const LatePolicy late = policy(Stage::kReduceScatter);
  if (late == LatePolicy::kWait || late == LatePolicy::kNoStage) return kNever;
  return SaturatingAdd(opened_at_, closing ? call_deadline_ : reduce_scatter_deadline_);
}

Instant CallPolicy::CallDeadline() const {
  if (policy_of_last_stage() == LatePolicy::kWait) return kNever;
  return SaturatingAdd(opened_at_, call_deadline_);
}

Instant CallPolicy::EarlyEnd(Stage stage, const LastSegments& last) const {
  if (policy(stage) != LatePolicy::kDrop || !HasReduceScatter(collective_.spec)) return kNever;
  if (!last.complete()) return kNever;
  const Duration grace = timing_->grace(Stage::kReduceScatter);
  if (stage == Stage::kReduceScatter) return last.last() + grace;
  // Owners may themselves wait for a loss in the first stage.
  return last.last() + grace + timing_->grace(Stage::kAllGather);
}

bool CallPolicy::Straggles(MemberIndex member) const {
  return retains() && !drain_ && timing_->straggles(member);
}

bool CallPolicy::Absent(MemberIndex member) const {
  if (LosesLate()) return collective_.attendance.Absent(member);
  if (drain_ || !OutlivesMembers(collective_.spec) || !deferred_->goes_on()) return false;
  const Presence& presence = *collective_.presence;
  if (DrainsBefore(member)) return true;
  if (member != collective_.self) return presence.Absent(collective_.RankOf(member));
  return presence.self_absent() || collective_.HasSkippedCallBefore(sequence_);
}

bool CallPolicy::DrainsBefore(MemberIndex member) const {
  if (LosesLate()) return false;
  const DrainNumber& drain = collective_.Origin().drain_number;
  if (member != collective_.self) return drain.DrainsBefore(collective_.RankOf(member), sequence_);
  return drain.told() && *drain.told() <= sequence_;
}

std::vector<MemberIndex> CallPolicy::FindAbsent() const {
  std::vector<MemberIndex> absent;
  for (const MemberIndex member : collective_.layout.Members()) {
    if (Absent(member)) absent.push_back(member);
  }
  // If most of the members are absent, they set the pace of the job, unless it is at its end.
  const bool few = 2 * absent.size() < collective_.layout.members();
  const auto drains = [this](Rank member) { return collective_.WaitsInDrain(member); };
  const bool waits = !few && !LosesLate() && std::ranges::none_of(collective_.spec.members, drains);
  if (waits) std::erase_if(absent, [this](MemberIndex member) { return !WaitsElsewhere(member); });
  return absent;
}

// The member makes this call only after the others have begun another one.
bool CallPolicy::WaitsElsewhere(MemberIndex member) const {
  const auto skipped = collective_.presence->WaitsAfter(collective_.RankOf(member));
  return skipped && (skipped->collective != collective_.id || skipped->sequence >= sequence_);
}

bool CallPolicy::HandleLate(Instant now, MemberIndex from, const Header& header,
                            std::span<const std::byte> payload) {
  RecordArrival(now, from, header);
  const Stage stage = StageOf(header.kind);
  if (policy(stage) == LatePolicy::kDrop) timing_->CameLate(stage, payload.size());
  return Defer(stage, header.segment, payload);
}

Receipt CallPolicy::HandleOver(Instant now, Collective& collective, MemberIndex from,
                               const Header& header, std::span<const std::byte> payload) {
  const BucketLayout& layout = collective.layout;
  const Sequence sequence = header.call.sequence;
  const Stage stage = StageOf(header.kind);
  const MemberIndex shard = stage == Stage::kReduceScatter ? collective.self : from;
  CallPolicy policy(collective, sequence, kNever, /*drain=*/false);
  if (!layout.Fits(shard, header.segment, payload.size())) return Receipt::kStale;
  if (!policy.Windowed(stage)) {
    // Without timing no call has opened here.
    const bool first = (header.flags & kFlagRetransmission) == 0;
    if (policy.timing_ != nullptr && first) policy.timing_->CameLate(stage, payload.size());
    return Receipt::kStale;
  }
  CallHistory& history = collective.deferred->history(stage, from);
  const std::size_t within = header.segment.value() - layout.FirstSegment(shard).value();
  const Receipt receipt = history.Take(sequence, within, layout.SegmentsOf(shard));
  if (receipt != Receipt::kNew) return receipt;
  policy.opened_at_ = collective.deferred->OpeningOf(sequence).value_or(kNever);
  policy.HandleLate(now, from, header, payload);
  return Receipt::kLate;
}

bool CallPolicy::Defer(Stage stage, SegmentIndex segment, std::span<const std::byte> values) {
  if (!Windowed(stage)) return false;
  SegmentStore& late =
      stage == Stage::kReduceScatter ? deferred_->late_contributions() : deferred_->late_results();
  late.Add(segment, values);
  return true;
}

void CallPolicy::RecordArrival(Instant now, MemberIndex from, const Header& header) {
  if (!retains() || drain_ || opened_at_ == kNever) return;
  const Stage stage = StageOf(header.kind);
  Instant began = BeganAt(now, header);
  if (std::vector<Instant>& open = began_[Index(stage)]; !open.empty()) {
    Instant& first = open[from.index()];
    if (first == kNever) {
      first = began;
      timing_->Began(stage, from, began - opened_at_);
    }
    began = first;
  }
  const BucketLayout& layout = collective_.layout;
  const MemberIndex shard = stage == Stage::kReduceScatter ? collective_.self : from;
  timing_->Arrived(stage, from, now - opened_at_, now - began,
                   static_cast<double>(layout.Segment(header.segment).bytes) /
                       static_cast<double>(layout.Shard(shard).bytes));
}

void CallPolicy::RecordReturn(Instant now, Collective& collective, MemberIndex member,
                              Sequence skipped) {
  if (!collective.deferred) return;
  const std::optional<Instant> opened = collective.deferred->OpeningOf(skipped);
  if (opened) collective.timing->Began(Stage::kReduceScatter, member, now - *opened);
}

// A contribution tells when its sender called. A result that is not retransmitted is among the
// first of its shard.
Instant CallPolicy::BeganAt(Instant now, const Header& header) const {
  if (header.kind == DatagramKind::kContribution) {
    return std::max(now - DecodeSenderInfo(header.sender_info).since_call, opened_at_);
  }
  return (header.flags & kFlagRetransmission) != 0 ? opened_at_ : now;
}

Instant CallPolicy::ServiceEndsAt() const {
  return LosesLate() && !service_ended_ ? CallDeadline() : kNever;
}

void CallPolicy::Remember(Stage stage, MemberIndex from, Bitmap received) {
  if (!Windowed(stage) || received.count() == 0) return;
  deferred_->history(stage, from).Remember(sequence_, std::move(received));
}

void CallPolicy::EndStage(Stage stage, StageEnd end) {
  if (stage == Stage::kReduceScatter) {
    reduce_scatter_elapsed_ = end.elapsed;
  } else {
    end.elapsed = std::max(end.elapsed - reduce_scatter_elapsed_, Duration(1));
  }
  timing_->Ended(stage, end);
}

Duration CallPolicy::deadline_needed() const {
  return timing_ != nullptr && !drain_ ? timing_->deadline_needed() : Duration{};
}

}  // namespace optireduce
