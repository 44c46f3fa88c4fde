#include "ffi/protocol/call/late_rules.h"

#include <algorithm>
#include <utility>

#include "ffi/protocol/wire/sender_note.h"

namespace optireduce {
namespace {

LatePolicy PolicyOf(const CollectiveSpec& spec, Stage stage) {
  return stage == Stage::kReduceScatter ? spec.reduce_scatter : spec.all_gather;
}

}  // namespace

LateRules::LateRules(Collective& collective, Sequence sequence, Instant opened_at, bool drain)
    : collective_(collective),
      sequence_(sequence),
      opened_at_(opened_at),
      drain_(drain),
      deferred_(collective.deferred.get()),
      timing_(collective.timing.get()) {}

void LateRules::Prepare(Collective& collective, const EndpointOptions& options, BufferPool& pool) {
  const CollectiveSpec& spec = collective.spec;
  if (HasDeadlines(spec) && !collective.timing) {
    collective.timing = std::make_unique<CallTiming>(spec, collective.self, options.late_budget,
                                                     options.suspends());
  }
  if (RetainsLateData(spec) && !collective.deferred) {
    collective.deferred =
        std::make_unique<DeferredData>(collective.layout, collective.self, spec.element_type,
                                       options.max_lag, options.suspends(), pool);
  }
}

LateRules LateRules::Open(Collective& collective, Sequence sequence, Instant now, bool drain) {
  LateRules rules(collective, sequence, now, drain);
  if (rules.timing_ == nullptr) return rules;
  rules.timing_->Open(now);
  rules.reduce_scatter_deadline_ = rules.timing_->reduce_scatter_deadline();
  rules.call_deadline_ = rules.timing_->call_deadline();
  if (!rules.retains()) return rules;
  rules.deferred_->NoteOpening(sequence, now);
  for (auto& began : rules.began_) began.assign(collective.layout.members(), kNever);
  rules.complete_before_.resize(collective.layout.members());
  return rules;
}

void LateRules::Submit(Instant now, bool in_order) {
  if (!retains()) return;
  submitted_at_ = now;
  for (const MemberIndex member : collective_.others) {
    if (!in_order) break;
    complete_before_[member.index()] = deferred_->CompleteBefore(member, sequence_);
  }
  const Duration after_opening = now - opened_at_;
  for (const Stage stage : kBothStages) {
    timing_->Began(stage, collective_.self, after_opening);
  }
  timing_->Arrived(Stage::kReduceScatter, collective_.self, after_opening, Duration(0), 1.0);
}

bool LateRules::Windowed(Stage stage) const {
  // A call can be over, given up, before any call of its collective has opened.
  return retains() && PolicyOf(collective_.spec, stage) == LatePolicy::kDefer;
}

LatePolicy LateRules::policy(Stage stage) const {
  const LatePolicy of_spec = PolicyOf(collective_.spec, stage);
  return drain_ && of_spec != LatePolicy::kNoStage ? LatePolicy::kWait : of_spec;
}

bool LateRules::MaySend(Stage stage, MemberIndex to) const {
  if (!Windowed(stage)) return true;
  const SendWindow& window = deferred_->sending(stage, to).window;
  if (window.Begun(sequence_)) return true;
  // Data of a drain shows that everything before it has come.
  return drain_ ? window.all_delivered() : window.MayBegin(sequence_);
}

std::unique_ptr<SegmentStore> LateRules::Begin(Stage stage, MemberIndex to) {
  if (!Unsent(stage, to)) return nullptr;
  deferred_->sending(stage, to).window.Begin(sequence_);
  return deferred_->PopDeferredSends(stage, to);
}

bool LateRules::Unsent(Stage stage, MemberIndex to) const {
  return Windowed(stage) && !deferred_->sending(stage, to).window.Begun(sequence_);
}

void LateRules::Deliver(Stage stage, MemberIndex to) {
  if (Windowed(stage)) deferred_->sending(stage, to).window.Deliver(sequence_);
}

std::uint16_t LateRules::NoteFor(Instant now, MemberIndex to, SegmentIndex segment) const {
  if (retains()) {
    return EncodeSenderNote(
        {.calls_with_results = complete_before_[to.index()], .since_call = now - submitted_at_});
  }
  if (timing_ == nullptr) return 0;
  return timing_->SampleFor({.collective = collective_.id, .sequence = sequence_}, segment);
}

std::uint8_t LateRules::FlagsFor(MemberIndex to) const {
  if (LosesLate()) return timing_->calibrating() ? kFlagMeasures : std::uint8_t{0};
  if (!retains()) return 0;
  return static_cast<std::uint8_t>((drain_ ? kFlagDrain : 0) |
                                   (deferred_->suspended(to) ? kFlagSuspended : 0));
}

void LateRules::HandleNote(MemberIndex from, const Header& header) {
  if (LosesLate()) timing_->HandleSample(from, header.call, header.segment, header.note);
}

void LateRules::HandleFlags(MemberIndex from, const Header& header) {
  if (LosesLate()) timing_->HandleMeasures(from, (header.flags & kFlagMeasures) != 0);
}

std::uint32_t LateRules::CallsWithResults(const Collective& collective, const Header& header) {
  if (NeedsNoMember(collective.spec)) return 0;
  const std::uint32_t before = header.call.sequence.value();
  // Where results are waited for, a later call proves that all before are there.
  if (WaitsForMembers(collective.spec, /*drain=*/false)) return before;
  return std::min(DecodeSenderNote(header.note).calls_with_results, before);
}

bool LateRules::Retransmits(Stage stage, MemberIndex to) const {
  if (policy(stage) != LatePolicy::kDrop) return true;
  // Nothing estimates a value that an all_gather lacks.
  if (!HasReduceScatter(collective_.spec)) return !released_;
  // The first calls measure the time until everything is there.
  return !released_ && (timing_->calibrating() || timing_->measures(to));
}

Instant LateRules::ReduceScatterDeadline(bool closing) const {
  const LatePolicy late = policy(Stage::kReduceScatter);
  if (late == LatePolicy::kWait || late == LatePolicy::kNoStage) return kNever;
  return SaturatingAdd(opened_at_, closing ? call_deadline_ : reduce_scatter_deadline_);
}

Instant LateRules::CallDeadline() const {
  if (policy_of_last_stage() == LatePolicy::kWait) return kNever;
  return SaturatingAdd(opened_at_, call_deadline_);
}

Instant LateRules::EarlyEnd(Stage stage, const LastSegments& last) const {
  if (policy(stage) != LatePolicy::kDrop || !HasReduceScatter(collective_.spec)) return kNever;
  if (!last.complete()) return kNever;
  const Duration grace = timing_->grace(Stage::kReduceScatter);
  if (stage == Stage::kReduceScatter) return last.last() + grace;
  // Owners may themselves wait for a loss in the first stage.
  return last.last() + grace + timing_->grace(Stage::kAllGather);
}

bool LateRules::Straggles(MemberIndex member) const {
  return retains() && !drain_ && timing_->straggles(member);
}

std::vector<MemberIndex> LateRules::FindAbsent() const {
  const bool goes_on = OutlivesMembers(collective_.spec) && !drain_ && deferred_->suspends();
  std::vector<MemberIndex> absent;
  for (const MemberIndex member : collective_.layout.Members()) {
    const bool missed = LosesLate() ? collective_.attendance.Absent(member)
                                    : goes_on && collective_.HasMissedCallBefore(sequence_, member);
    if (missed) absent.push_back(member);
  }
  // If most of the members are absent, they set the pace of the job.
  const bool few = 2 * absent.size() < collective_.layout.members();
  return few || LosesLate() ? absent : std::vector<MemberIndex>();
}

bool LateRules::HandleLate(Instant now, MemberIndex from, const Header& header,
                           std::span<const std::byte> payload) {
  Learn(now, from, header);
  const Stage stage = StageOf(header.kind);
  if (policy(stage) == LatePolicy::kDrop) timing_->CameLate(stage, payload.size());
  return Defer(stage, header.segment, payload);
}

Receipt LateRules::HandleOver(Instant now, Collective& collective, MemberIndex from,
                              const Header& header, std::span<const std::byte> payload) {
  const BucketLayout& layout = collective.layout;
  const Sequence sequence = header.call.sequence;
  const Stage stage = StageOf(header.kind);
  const MemberIndex shard = stage == Stage::kReduceScatter ? collective.self : from;
  LateRules rules(collective, sequence, kNever, /*drain=*/false);
  if (!layout.Fits(shard, header.segment, payload.size())) return Receipt::kStale;
  if (!rules.Windowed(stage)) {
    // Without timing no call has opened here.
    const bool first = (header.flags & kFlagRetransmission) == 0;
    if (rules.timing_ != nullptr && first) rules.timing_->CameLate(stage, payload.size());
    return Receipt::kStale;
  }
  CallHistory& history = collective.deferred->history(stage, from);
  const std::size_t within = header.segment.value() - layout.FirstSegment(shard).value();
  const Receipt receipt = history.Take(sequence, within, layout.SegmentsOf(shard));
  if (receipt != Receipt::kNew) return receipt;
  rules.opened_at_ = collective.deferred->OpeningOf(sequence).value_or(kNever);
  rules.HandleLate(now, from, header, payload);
  return Receipt::kLate;
}

bool LateRules::Defer(Stage stage, SegmentIndex segment, std::span<const std::byte> values) {
  if (!Windowed(stage)) return false;
  SegmentStore& late =
      stage == Stage::kReduceScatter ? deferred_->late_contributions() : deferred_->late_results();
  late.Add(segment, values);
  return true;
}

void LateRules::Learn(Instant now, MemberIndex from, const Header& header) {
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

void LateRules::LearnReturn(Instant now, Collective& collective, MemberIndex member,
                            Sequence skipped) {
  if (!collective.deferred) return;
  const std::optional<Instant> opened = collective.deferred->OpeningOf(skipped);
  if (opened) collective.timing->Began(Stage::kReduceScatter, member, now - *opened);
}

// A contribution tells when its sender called. A result that is not retransmitted is among the
// first of its shard.
Instant LateRules::BeganAt(Instant now, const Header& header) const {
  if (header.kind == DatagramKind::kContribution) {
    return std::max(now - DecodeSenderNote(header.note).since_call, opened_at_);
  }
  return (header.flags & kFlagRetransmission) != 0 ? opened_at_ : now;
}

Instant LateRules::ReleaseAt() const { return LosesLate() && !released_ ? CallDeadline() : kNever; }

void LateRules::Remember(Stage stage, MemberIndex from, Bitmap received) {
  if (!Windowed(stage) || received.count() == 0) return;
  deferred_->history(stage, from).Remember(sequence_, std::move(received));
}

void LateRules::EndStage(Stage stage, StageEnd end) {
  if (stage == Stage::kReduceScatter) {
    reduce_scatter_elapsed_ = end.elapsed;
  } else {
    end.elapsed = std::max(end.elapsed - reduce_scatter_elapsed_, Duration(1));
  }
  timing_->Ended(stage, end);
}

Duration LateRules::deadline_needed() const {
  return timing_ != nullptr && !drain_ ? timing_->deadline_needed() : Duration{};
}

}  // namespace optireduce
