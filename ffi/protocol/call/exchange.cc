#include "ffi/protocol/call/exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/codec/reduce.h"

namespace optireduce {

Exchange::Exchange(const Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
                   const ExchangeOptions& options)
    : collective_(collective),
      sequence_(sequence),
      opened_at_(now),
      options_(options),
      pool_(pool),
      deferred_(collective.deferred.get()),
      drain_(options.drain),
      timing_(collective.timing.get()),
      scratch_(collective.layout.LargestSegmentBytes()),
      reduction_(collective.layout, collective.self, collective.spec.element_type, pool),
      gathered_(collective.layout.segments()),
      heard_(collective.layout.members()),
      absent_(collective.layout.members()),
      missed_(collective.layout.members()),
      undelivered_(collective.layout.members()),
      last_from_(collective.self),
      arrivals_(collective.self, collective.layout.members()) {
  const BucketLayout& layout = collective.layout;
  if (Rounds(collective.spec)) {
    exact_.resize(layout.LargestSegmentBytes());
    rounded_.resize(layout.LargestSegmentBytes());
  }
  contributed_tails_.seen.resize(layout.members());
  result_tails_.seen.resize(layout.members());
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    const bool self = member == collective.self;
    outboxes_.emplace_back(layout.FirstSegment(member), self ? 0 : layout.SegmentsOf(member),
                           layout.FirstSegment(collective.self),
                           self ? 0 : layout.SegmentsOf(collective.self));
    if (!self) {
      contributed_tails_.missing += layout.SegmentsOf(collective.self) > 0;
      result_tails_.missing += layout.SegmentsOf(member) > 0;
      if (Drops(collective.spec) && collective.attendance.Absent(member)) Forgo(member);
    }
  }
  if (timing_ != nullptr) {
    timing_->Open();
    reduce_scatter_deadline_ = timing_->reduce_scatter_deadline();
    call_deadline_ = timing_->call_deadline();
  }
  if (deferred_ == nullptr) return;
  for (std::uint16_t m = 0; m < layout.members() && !drain_; ++m) {
    if (timing_->straggles(MemberIndex(m))) reduction_.Forgo(MemberIndex(m));
  }
  deferred_->NoteOpening(sequence, now);
  for (auto& began : began_) began.assign(layout.members(), kNever);
  delivered_ = Bitmap(layout.segments());
  holds_deferred_ = Bitmap(layout.segments());
  complete_before_.resize(layout.members());
  kept_.resize(layout.members());
  for (auto& joining : joining_) joining.resize(layout.members());
}

LatePolicy Exchange::policy(Stage stage) const {
  if (drain_) return LatePolicy::kWait;
  return stage == Stage::kReduceScatter ? collective_.spec.reduce_scatter
                                        : collective_.spec.all_gather;
}

void Exchange::Submit(Instant now, Submission submission, bool in_order) {
  OR_CHECK(!submitted());
  Expire(now);
  const BucketLayout& layout = collective_.layout;
  submitted_at_ = now;
  held_ = submission.held;
  token_ = submission.token;
  bucket_ = BucketView(submission.leaves, SizeOf(collective_.spec.element_type));
  OR_CHECK(bucket_.bytes() == layout.bytes());
  for (std::uint16_t m = 0; m < layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective_.self) continue;
    // Where nothing is deferred, nobody wants a contribution after the close.
    if (deferred_ == nullptr && reduced_closed_) continue;
    outbox(member).OfferContributions();
    if (deferred_ == nullptr) continue;
    undelivered_[m] = layout.SegmentsOf(member);
    if (in_order) complete_before_[m] = deferred_->CompleteBefore(member, sequence_);
  }
  contributed_tails_.last = std::max(contributed_tails_.last, now);
  result_tails_.last = std::max(result_tails_.last, now);
  if (deferred_ != nullptr) {
    const Duration after_opening = now - opened_at_;
    for (const Stage stage : kBothStages) timing_->Began(stage, collective_.self, after_opening);
    timing_->Arrived(Stage::kReduceScatter, collective_.self, after_opening, Duration(0), 1.0);
  }
  PlaceEarlyResults();
  reduction_.Attach(&bucket_);
  for (std::uint32_t i = 0; i < layout.SegmentsOf(collective_.self); ++i) {
    const SegmentIndex segment(layout.FirstSegment(collective_.self).value() + i);
    if (reduction_.Ready(segment)) ReduceSegment(segment);
  }
  NoteReduced(now);
}

void Exchange::PlaceEarlyResults() {
  const BucketLayout& layout = collective_.layout;
  for (std::uint32_t s = 0; s < layout.segments() && early_results_.size() > 0; ++s) {
    const SegmentIndex segment(s);
    if (!gathered_.Contains(s) || layout.OwnerOf(segment) == collective_.self) continue;
    const ByteRange range = layout.Segment(segment);
    Keep(segment);
    bucket_.Write(range.offset, {early_results_.data() + range.offset, range.bytes});
  }
  early_results_ = Buffer();
  for (const SegmentIndex segment : sums_) {
    const ByteRange range = layout.Segment(segment);
    if (deferred_ != nullptr) {
      deferred_->late_contributions().Add(segment, {bucket_.Read(range, scratch_), range.bytes});
    }
    bucket_.Write(range.offset, reduction_.Sum(segment));
  }
}

std::size_t Exchange::EarlyResultBytes() const {
  const bool late = deferred_ != nullptr ? over() : closed_;
  if (submitted() || late || early_results_.size() > 0) return 0;
  // Where contributions are waited for, no sum is without this rank's.
  return policy(Stage::kReduceScatter) == LatePolicy::kWait ? 0 : collective_.layout.bytes();
}

Exchange::Receipt Exchange::HandleContribution(Instant now, MemberIndex from, const Header& header,
                                               std::span<const std::byte> payload) {
  const BucketLayout& layout = collective_.layout;
  const SegmentIndex segment = header.segment;
  if (segment.value() >= layout.segments() || layout.OwnerOf(segment) != collective_.self ||
      payload.size() != layout.Segment(segment).bytes) {
    return Receipt::kMismatched;
  }
  Heard(from);
  // Of this segment nothing at all was there at the close.
  if (reduced_closed_ && !reduction_.Reduced(segment)) {
    ++stats_.late;
    return Receipt::kLate;
  }
  if (deferred_ == nullptr && timing_ != nullptr) {
    timing_->HandleSample(from, call(), segment, header.contributors);
  }
  switch (reduction_.Receive(from, segment, payload)) {
    case Reduction::Receipt::kDuplicate:
      return Receipt::kDuplicate;
    case Reduction::Receipt::kLate:
      ++stats_.late;
      Time(now, Stage::kReduceScatter, from, header);
      if (deferred_ != nullptr) deferred_->late_contributions().Add(segment, payload);
      return Receipt::kLate;
    case Reduction::Receipt::kNew:
      break;
  }
  Time(now, Stage::kReduceScatter, from, header);
  if (deferred_ != nullptr && (header.flags & kFlagDeferred))
    holds_deferred_.Insert(segment.index());
  last_from_ = from;
  arrivals_.Note(now, from);
  contributed_tails_.last = now;
  if (header.flags & kFlagTail) contributed_tails_.See(from);
  if (reduction_.Ready(segment)) ReduceSegment(segment);
  NoteReduced(now);
  return Receipt::kNew;
}

bool Exchange::IsResultOf(MemberIndex from, const Header& header, std::size_t bytes) const {
  const BucketLayout& layout = collective_.layout;
  if (header.segment.value() >= layout.segments() || from == collective_.self) return false;
  if (layout.OwnerOf(header.segment) != from) return false;
  if (bytes != layout.Segment(header.segment).bytes) return false;
  // A sum without any contribution holds deferred data.
  return header.contributors <= layout.members() &&
         (header.contributors > 0 || deferred_ != nullptr);
}

Exchange::Receipt Exchange::HandleResult(Instant now, MemberIndex from, const Header& header,
                                         std::span<const std::byte> payload) {
  if (!IsResultOf(from, header, payload.size())) return Receipt::kMismatched;
  const BucketLayout& layout = collective_.layout;
  const SegmentIndex segment = header.segment;
  const std::uint16_t contributors = header.contributors;
  const bool early = !submitted();
  // Where contributions are waited for, a sum contains this rank's: it cannot come before it.
  if (early && policy(Stage::kReduceScatter) == LatePolicy::kWait) return Receipt::kMismatched;
  Heard(from);
  if (gathered_.Contains(segment.index())) return Receipt::kDuplicate;
  if (deferred_ != nullptr ? over() : finished_ || closed_) {
    ++stats_.late;
    Time(now, Stage::kAllGather, from, header);
    if (Windowed(Stage::kAllGather)) {
      gathered_.Insert(segment.index());
      deferred_->late_results().Add(segment, payload);
    }
    return Receipt::kLate;
  }
  const std::uint64_t offset = layout.Segment(segment).offset;
  if (early) {
    if (early_results_.size() == 0) early_results_ = pool_.Take(layout.bytes());
    std::memcpy(early_results_.data() + offset, payload.data(), payload.size());
  } else {
    // The sum of all contains this rank's, whose acknowledgement may still be under way.
    if (contributors == layout.members()) DeliverContribution(segment);
    Keep(segment);
    bucket_.Write(offset, payload);
  }
  Time(now, Stage::kAllGather, from, header);
  gathered_.Insert(segment.index());
  if (deferred_ != nullptr && (header.flags & kFlagDeferred))
    holds_deferred_.Insert(segment.index());
  CountResult(segment, contributors);
  last_from_ = from;
  result_tails_.last = now;
  if (header.flags & kFlagTail) result_tails_.See(from);
  return Receipt::kNew;
}

void Exchange::NoteMissed(SegmentIndex segment) {
  for (std::uint16_t m = 0; m < missed_.size(); ++m) {
    const MemberIndex member(m);
    if (member != collective_.self) missed_[m] += !reduction_.Received(member, segment);
  }
}

void Exchange::ReduceSegment(SegmentIndex segment) {
  NoteMissed(segment);
  if (deferred_ != nullptr) {
    SegmentStore& late = deferred_->late_contributions();
    const bool deferred = late.Contains(segment);
    reduction_.ReduceWithLate(segment, deferred ? late.Get(segment) : std::span<const std::byte>());
    if (deferred) {
      late.Remove(segment);
      holds_deferred_.Insert(segment.index());
    }
  } else if (!reduction_.Reduce(segment, /*rescale=*/true)) {
    return;
  }
  if (Rounds(collective_.spec)) RoundSum(segment);
  const std::span<const std::byte> sum = reduction_.Sum(segment);
  if (submitted() && !finished_) bucket_.Write(collective_.layout.Segment(segment).offset, sum);
  sums_.push_back(segment);
  gathered_.Insert(segment.index());
  CountResult(segment, reduction_.contributions(segment));
  if (reduction_.contributions(segment) < collective_.layout.members()) short_ = true;
}

void Exchange::CountResult(SegmentIndex segment, std::uint16_t contributors) {
  const std::uint64_t bytes = collective_.layout.Segment(segment).bytes;
  result_bytes_ += bytes;
  contributed_ += static_cast<double>(bytes) * contributors;
}

bool Exchange::Contributes(MemberIndex to) const {
  if (!submitted() || (finished_ && deferred_ == nullptr)) return false;
  return MaySend(Stage::kReduceScatter, to);
}

bool Exchange::MayContribute(MemberIndex to) const {
  // The first `incast` peers of the schedule that have not been sent everything once. What is sent
  // again does not wait for its turn, nor keep it: a peer that refuses delays nobody else.
  if (incast_ + 1u >= outboxes_.size()) return true;
  std::uint16_t before = 0;
  for (const MemberIndex peer : options_.send_order) {
    if (peer == to) return true;
    const Outbox& other = outboxes_[peer.index()];
    const bool waits = other.contributing() && !other.stalled();
    if (waits && MaySend(Stage::kReduceScatter, peer) && ++before >= incast_) return false;
  }
  return false;
}

bool Exchange::Needed(const Outbox::Item& item) const {
  if (item.kind != DatagramKind::kContribution) return true;
  if (deferred_ != nullptr) return !delivered_.Contains(item.segment.index());
  // A result for the segment shows that its owner has closed it.
  return !finished_ && !gathered_.Contains(item.segment.index());
}

std::optional<Outbox::Item> Exchange::Next(MemberIndex to) {
  const bool contribute = Contributes(to) && MayContribute(to);
  std::span<const SegmentIndex> sums;
  if (MaySend(Stage::kAllGather, to)) sums = sums_;
  while (const auto item = outbox(to).Next(sums, contribute)) {
    if (Needed(*item)) {
      Begin(item->kind == DatagramKind::kContribution ? Stage::kReduceScatter : Stage::kAllGather,
            to);
      return item;
    }
    outbox(to).Pop(*item);
  }
  return std::nullopt;
}

bool Exchange::CloseNext(Instant now, MemberIndex to) {
  const bool closes =
      closing_ && !reduced_closed_ && policy(Stage::kReduceScatter) != LatePolicy::kWait;
  if (!closes || outbox(to).Delivered() || HeldBack(to) || !MaySend(Stage::kAllGather, to)) {
    return false;
  }
  const std::uint32_t first = collective_.layout.FirstSegment(collective_.self).value();
  while (reduction_.Reduced(SegmentIndex(first + next_to_close_))) ++next_to_close_;
  ReduceSegment(SegmentIndex(first + next_to_close_));
  NoteReduced(now);
  return true;
}

std::size_t Exchange::PayloadBytes(const Outbox::Item& item) const {
  const std::size_t bytes = collective_.layout.Segment(item.segment).bytes;
  if (!rounds()) return bytes;
  return EncodedBytes(collective_.spec.wire_format, bytes / sizeof(float));
}

std::span<const std::byte> Exchange::OwnPayload(const Outbox::Item& item,
                                                std::span<std::byte> scratch) const {
  if (item.kind == DatagramKind::kResult) return reduction_.Sum(item.segment);
  const ByteRange range = collective_.layout.Segment(item.segment);
  if (deferred_ != nullptr) {
    const auto& kept = kept_[collective_.layout.OwnerOf(item.segment).index()];
    if (kept && kept->Contains(item.segment)) return kept->Get(item.segment);
  }
  return {bucket_.Read(range, scratch), range.bytes};
}

std::span<const std::byte> Exchange::Payload(MemberIndex to, const Outbox::Item& item,
                                             std::span<std::byte> out) {
  if (Rounds(collective_.spec)) {
    WriteRounded(to, item, out);
    return out;
  }
  const std::span<const std::byte> payload = OwnPayload(item, out);
  const SegmentStore* const joining = Joining(to, item);
  if (joining == nullptr) return payload;
  const ElementType type = collective_.spec.element_type;
  const std::array<const std::byte*, 2> both = {payload.data(), joining->Get(item.segment).data()};
  SumContributions(type, both, out.size() / SizeOf(type), 1.0, out.data());
  return out;
}

void Exchange::FillHeader(MemberIndex to, const Outbox::Item& item, Header& header) const {
  // Chosen: that all of them are lost is rarer than anything else that goes wrong.
  constexpr std::uint32_t kTailSegments = 4;
  const bool contribution = item.kind == DatagramKind::kContribution;
  header.kind = item.kind;
  header.call = call();
  header.segment = item.segment;
  header.flags = outboxes_[to.index()].Remaining(item.kind) <= kTailSegments ? kFlagTail : 0;
  if (!contribution) header.contributors = reduction_.contributions(item.segment);
  if (item.retransmission) header.flags |= kFlagRetransmission;
  if (deferred_ == nullptr) {
    if (contribution && timing_ != nullptr) {
      header.contributors = timing_->SampleFor(call(), item.segment);
    }
    return;
  }
  if (contribution) header.contributors = complete_before_[to.index()];
  const bool deferred = !contribution && holds_deferred_.Contains(item.segment.index());
  if (deferred || Joining(to, item) != nullptr) header.flags |= kFlagDeferred;
  if (drain_) header.flags |= kFlagDrain;
  if (deferred_->suspended(to)) header.flags |= kFlagSuspended;
}

Exchange::Retransmission Exchange::Lost(MemberIndex to, const Outbox::Item& item, bool refused) {
  const bool contribution = item.kind == DatagramKind::kContribution;
  if (!Needed(item) || (!contribution && outbox(to).Delivered())) return Retransmission::kNotNeeded;
  // Of a call that was forgotten, and has begun anew for somebody who is later.
  if (!contribution && !reduction_.Reduced(item.segment)) return Retransmission::kNotNeeded;
  const bool drops =
      policy(contribution ? Stage::kReduceScatter : Stage::kAllGather) == LatePolicy::kDrop;
  // The first calls measure how long it takes until everything is there.
  if (drops && (expired_ || !timing_->calibrating())) {
    // Nothing is kept for what nobody will ask for.
    if (!contribution) outbox(to).Deliver(item.segment);
    return Retransmission::kAbandoned;
  }
  outbox(to).Lost(item);
  stats_.retransmitted += !refused;
  return Retransmission::kAgain;
}

bool Exchange::Delivered(MemberIndex to, const Outbox::Item& item) {
  if (item.kind == DatagramKind::kContribution) {
    DeliverContribution(item.segment);
    return deferred_ != nullptr && undelivered_[to.index()] == 0;
  }
  outbox(to).Deliver(item.segment);
  if (!outbox(to).Delivered()) return false;
  DeliverResults(to);
  return true;
}

void Exchange::ReleaseResults(MemberIndex peer) {
  outbox(peer).DeliverAll();
  DeliverResults(peer);
}

void Exchange::Release(MemberIndex peer) {
  // What a drain moves is no part of a later call.
  const bool unsent = !drain_ && undelivered_[peer.index()] > 0 &&
                      Windowed(Stage::kReduceScatter) &&
                      !deferred_->window(Stage::kReduceScatter, peer).Begun(sequence_);
  if (unsent) DeferSends(Stage::kReduceScatter, peer);
  ReleaseResults(peer);
  DeliverContributions(peer);
  outbox(peer).AbandonContributions();
}

Instant Exchange::ReduceScatterDeadline() const {
  if (policy(Stage::kReduceScatter) == LatePolicy::kWait) return kNever;
  return SaturatingAdd(opened_at_, closing_ ? call_deadline_ : reduce_scatter_deadline_);
}

Instant Exchange::CallDeadline() const {
  if (policy(Stage::kAllGather) == LatePolicy::kWait) return kNever;
  return SaturatingAdd(opened_at_, call_deadline_);
}

Instant Exchange::EarlyReduceScatter() const {
  if (policy(Stage::kReduceScatter) != LatePolicy::kDrop) return kNever;
  if (!submitted() || contributed_tails_.missing > 0) return kNever;
  return contributed_tails_.last + timing_->grace(Stage::kReduceScatter);
}

Instant Exchange::EarlyCall() const {
  if (policy(Stage::kAllGather) != LatePolicy::kDrop) return kNever;
  if (!reduced_closed_ && !reduction_.finished()) return kNever;
  if (submitted() && Gathered()) return opened_at_;
  if (!submitted() || result_tails_.missing > 0) return kNever;
  // Owners may be waiting for something lost in the first stage themselves.
  return result_tails_.last + timing_->grace(Stage::kReduceScatter) +
         timing_->grace(Stage::kAllGather);
}

Instant Exchange::LagDeadline() const {
  if (!WaitsForLag()) return kNever;
  const Instant from = std::max(*submitted_at_, opened_at_ + call_deadline_);
  return SaturatingAdd(from, options_.lag_timeout);
}

Instant Exchange::deadline() const {
  if (expired_) return kNever;
  // What was closed for a peer may have been the last that the program waited for.
  if (closing_ && complete()) return opened_at_;
  Instant at = kNever;
  if (!reduced_closed_ && !reduction_.finished()) {
    at = std::min(ReduceScatterDeadline(), EarlyReduceScatter());
  }
  if (!closed_ && !over()) at = std::min({at, CallDeadline(), EarlyCall()});
  // After a call of this kind there is something to forget.
  if (policy(Stage::kAllGather) == LatePolicy::kDrop) at = std::min(at, CallDeadline());
  return std::min(at, LagDeadline());
}

int Exchange::Expire(Instant now) {
  int expired = 0;
  if (!reduced_closed_ && now >= std::min(ReduceScatterDeadline(), EarlyReduceScatter())) {
    if (!reduction_.finished() && !closing_) {
      ++expired;
      closing_ = policy(Stage::kReduceScatter) == LatePolicy::kDefer;
    }
    const bool over = now >= ReduceScatterDeadline();
    if (over || !closing_) {
      CloseReduceScatter(now, over ? StageExit::kExpired : StageExit::kEarly);
    }
  }
  if (!closed_ && !over() && now >= std::min(CallDeadline(), EarlyCall())) {
    if (!Gathered()) ++expired;
    closed_ = true;
    TimeEnd(now, Stage::kAllGather,
            Gathered()              ? StageExit::kComplete
            : now >= CallDeadline() ? StageExit::kExpired
                                    : StageExit::kEarly);
  }
  if (skipped_ && CanFold()) Fold();
  if (now >= LagDeadline()) deferred_->SuspendLagging(sequence_);
  const bool drops = policy(Stage::kAllGather) == LatePolicy::kDrop;
  if (drops && !expired_ && now >= CallDeadline()) Forget();
  return expired;
}

void Exchange::NoteReduced(Instant now) {
  if (timing_ == nullptr || reduced_closed_ || !reduction_.finished()) return;
  CloseReduceScatter(now, StageExit::kComplete);
}

void Exchange::CloseReduceScatter(Instant now, StageExit exit) {
  reduced_closed_ = true;
  TimeEnd(now, Stage::kReduceScatter, exit);
  for (std::uint32_t i = 0; i < collective_.layout.SegmentsOf(collective_.self); ++i) {
    const SegmentIndex segment(collective_.layout.FirstSegment(collective_.self).value() + i);
    if (!reduction_.Reduced(segment)) ReduceSegment(segment);
  }
  if (over() && deferred_ != nullptr) RetireSums();
}

void Exchange::Forget() {
  expired_ = true;
  closed_ = true;
  // Whoever opened this call at the same time has closed it too.
  for (Outbox& outbox : outboxes_) {
    outbox.DeliverAll();
    outbox.AbandonContributions();
  }
}

bool Exchange::Overtake(Instant now) {
  if (!finished_) return false;
  for (std::size_t m = 0; m < outboxes_.size(); ++m) {
    if (absent_[m]) outboxes_[m].DeliverAll();
  }
  // It has failed before its deadline.
  const bool open = deferred_ != nullptr && !reduction_.finished();
  if (open) CloseReduceScatter(now, StageExit::kExpired);
  return open || removable();
}

void Exchange::ZeroMissing() {
  const BucketLayout& layout = collective_.layout;
  for (std::uint32_t s = 0; s < layout.segments() && !gathered_.full(); ++s) {
    if (gathered_.Contains(s)) continue;
    // Zero, not the rank's own value that still lies there: that would be a result of one rank.
    Keep(SegmentIndex(s));
    bucket_.Zero(layout.Segment(SegmentIndex(s)));
  }
}

CallDone Exchange::Finish(Instant now, Status status) {
  OR_CHECK(submitted() && !finished_);
  const BucketLayout& layout = collective_.layout;
  const bool waits = policy(Stage::kAllGather) == LatePolicy::kWait;
  const auto all = static_cast<double>(std::max<std::uint64_t>(layout.bytes(), 1));
  if (deferred_ != nullptr) {
    stats_.deferred = static_cast<double>(DeferredBytes()) / all;
    stats_.in_flight = InFlight();
    deferred_->NoteMissed(status.ok() ? MissedBytes() : 0);
  }
  FindSlowest(now);
  if (status.ok()) {
    ZeroMissing();
    collective_.MoveLateResults(bucket_);
  }
  finished_ = true;
  if (layout.bytes() > 0) stats_.missing_results = 1.0 - static_cast<double>(result_bytes_) / all;
  if (result_bytes_ > 0) {
    stats_.missing_contributions =
        1.0 - contributed_ / (static_cast<double>(result_bytes_) * layout.members());
  }
  stats_.elapsed = now - *submitted_at_ + held_;
  stats_.live = layout.members();
  if (!waits) stats_.deadline = call_deadline_;
  if (timing_ != nullptr && !drain_) stats_.deadline_needed = timing_->deadline_needed();
  if (!closed_ && status.ok()) TimeEnd(now, Stage::kAllGather, StageExit::kComplete);
  reduction_.Detach();
  bucket_ = BucketView();
  if (deferred_ != nullptr) {
    // Of a call that failed, what peers do not have is theirs no more.
    for (std::uint16_t m = 0; m < undelivered_.size() && !status.ok(); ++m) {
      DeliverContributions(MemberIndex(m));
      outboxes_[m].AbandonContributions();
      if (drain_) ReleaseResults(MemberIndex(m));
    }
    Retire();
  } else {
    for (Outbox& outbox : outboxes_) {
      outbox.AbandonContributions();
      if (!status.ok()) outbox.DeliverAll();
    }
  }
  return {.token = token_, .status = std::move(status), .stats = stats_};
}

bool Exchange::OnlyHeard(Rank from) const {
  for (std::size_t m = 0; m < heard_.size(); ++m) {
    if (heard_[m] && collective_.spec.members[m] != from) return false;
  }
  return true;
}

bool Exchange::removable() const {
  if (!over()) return false;
  const bool served =
      std::ranges::all_of(outboxes_, [](const Outbox& outbox) { return outbox.Delivered(); });
  if (deferred_ == nullptr) return served || expired_;
  return served && reduction_.finished() &&
         std::ranges::all_of(undelivered_, [](std::uint32_t count) { return count == 0; });
}

}  // namespace optireduce
