#include "ffi/protocol/call/all_gather_stage.h"

#include <algorithm>
#include <cstring>

namespace optireduce {

AllGatherStage::AllGatherStage(Collective& collective, CallPolicy& policy, CallSender& sender,
                               BucketView& bucket, BufferPool& pool)
    : collective_(collective),
      policy_(policy),
      sender_(sender),
      bucket_(bucket),
      pool_(pool),
      received_(collective.layout.segments()),
      missing_of_(collective.layout.members()),
      holds_deferred_(collective.layout.segments()),
      is_optional_(collective.layout.members()),
      last_segments_(collective.layout.members()) {
  for (const MemberIndex member : collective.layout.Members()) {
    missing_of_[member.index()] = collective.layout.SegmentsOf(member);
  }
  for (const MemberIndex member : collective.others) {
    if (!HasAllGather(collective.spec)) {
      Exclude(member);
    } else if (collective.layout.SegmentsOf(member) > 0) {
      last_segments_.Await(member);
    }
  }
}

bool AllGatherStage::Fits(MemberIndex from, const Header& header, std::size_t bytes) const {
  const BucketLayout& layout = collective_.layout;
  if (from == collective_.self || header.segment.value() >= layout.segments()) return false;
  const bool relayed = policy_.MayRelay() && (header.flags & kFlagRelayed) != 0;
  const MemberIndex owner = layout.OwnerOf(header.segment);
  if (owner == collective_.self || (owner != from && !relayed)) return false;
  if (!layout.Fits(owner, header.segment, bytes)) return false;
  // No sum without this rank's contribution comes before that.
  if (!called() && !over_ && policy_.SumsNeedAll()) return false;
  // A sum without any contribution holds deferred data.
  return header.contributors <= collective_.layout.members() &&
         (header.contributors > 0 || policy_.retains());
}

Receipt AllGatherStage::Handle(Instant now, MemberIndex from, const Header& header,
                               std::span<const std::byte> payload) {
  const SegmentIndex segment = header.segment;
  if (received_.Contains(segment.index())) return Receipt::kDuplicate;
  if (TakesNoMore()) {
    if (policy_.HandleLate(now, from, header, payload)) Insert(from, segment);
    return Receipt::kLate;
  }
  // The owner may have this rank's contribution, whose acknowledgement is still under way.
  if (policy_.ShowsDelivery(header.contributors)) sender_.DeliverContribution(segment);
  const std::uint64_t offset = collective_.layout.Segment(segment).offset;
  if (called()) {
    sender_.RetainContribution(segment);
    bucket_.Write(offset, payload);
  } else {
    if (early_.size() == 0) early_ = pool_.Take(collective_.layout.bytes());
    std::memcpy(early_.data() + offset, payload.data(), payload.size());
  }
  policy_.RecordArrival(now, from, header);
  Insert(from, segment);
  if ((header.flags & kFlagDeferred) != 0) holds_deferred_.Insert(segment.index());
  last_segments_.Record(now);
  if (header.flags & kFlagTail) last_segments_.See(from);
  return Receipt::kNew;
}

void AllGatherStage::Add(SegmentIndex segment, std::span<const std::byte> sum,
                         bool holds_deferred) {
  if (called()) bucket_.Write(collective_.layout.Segment(segment).offset, sum);
  Insert(collective_.self, segment);
  if (holds_deferred) holds_deferred_.Insert(segment.index());
}

void AllGatherStage::Submit(Instant now, const Quorum& quorum) {
  quorum_ = quorum;
  last_segments_.Record(now);
  if (early_.size() == 0) return;
  for (const MemberIndex owner : collective_.others) {
    for (const SegmentIndex segment : collective_.layout.Segments(owner)) {
      if (!received_.Contains(segment.index())) continue;
      sender_.RetainContribution(segment);
      bucket_.Write(collective_.layout.Segment(segment).offset, Early(segment));
    }
  }
  early_ = Buffer();
}

void AllGatherStage::Insert(MemberIndex owner, SegmentIndex segment) {
  if (received_.Insert(segment.index())) --missing_of_[owner.index()];
}

bool AllGatherStage::SparesAll(const std::vector<bool>& members) const {
  if (quorum_.clusters.empty()) return false;
  std::vector<std::size_t> of_cluster(quorum_.clusters.size());
  for (std::size_t member = 0; member < members.size(); ++member) {
    of_cluster[quorum_.clusters[member]] += members[member];
  }
  return std::ranges::all_of(of_cluster, [this](auto count) { return count <= quorum_.spare; });
}

bool AllGatherStage::HasQuorum() const {
  if (quorum_.clusters.empty()) return false;
  struct Missing {
    std::size_t all = 0;
    std::size_t optional = 0;
  };
  std::vector<Missing> missing(*std::ranges::max_element(quorum_.clusters) + std::size_t{1});
  for (const MemberIndex member : collective_.layout.Members()) {
    if (NotReceived(member) == 0) continue;
    Missing& of_cluster = missing[quorum_.clusters[member.index()]];
    ++of_cluster.all;
    of_cluster.optional += is_optional_[member.index()];
  }
  return std::ranges::all_of(missing, [this](const Missing& of_cluster) {
    return of_cluster.all <= std::max<std::size_t>(quorum_.spare, of_cluster.optional);
  });
}

std::size_t AllGatherStage::EarlyBytes() const {
  if (called() || TakesNoMore() || early_.size() > 0) return 0;
  return policy_.SumsNeedAll() ? 0 : collective_.layout.bytes();
}

void AllGatherStage::MakeOptional(MemberIndex absent) {
  if (!HasAllGather(collective_.spec)) return;
  is_optional_[absent.index()] = true;
  optional_ += collective_.layout.SegmentsOf(absent);
  last_segments_.See(absent);
}

void AllGatherStage::Require(MemberIndex member) {
  if (!is_optional_[member.index()]) return;
  is_optional_[member.index()] = false;
  optional_ -= collective_.layout.SegmentsOf(member);
  if (collective_.layout.SegmentsOf(member) > 0) last_segments_.Await(member);
}

void AllGatherStage::Exclude(MemberIndex gone) {
  for (const SegmentIndex segment : collective_.layout.Segments(gone)) {
    Insert(gone, segment);
  }
}

void AllGatherStage::ZeroMissing() {
  if (full()) return;
  for (const SegmentIndex segment : collective_.layout.Segments()) {
    if (received_.Contains(segment.index())) continue;
    // Not the rank's own value that still lies there: that would be a result of one rank.
    sender_.RetainContribution(segment);
    bucket_.Zero(collective_.layout.Segment(segment));
  }
}

void AllGatherStage::DeferAll(const ReduceScatterStage& sums) {
  if (!HasAllGather(collective_.spec)) {
    // A sum is this rank's alone, and joins its next one.
    for (const SegmentIndex segment : collective_.layout.Segments(collective_.self)) {
      policy_.Defer(Stage::kReduceScatter, segment, sums.Sum(segment));
    }
    return;
  }
  for (const SegmentIndex segment : collective_.layout.Segments()) {
    if (!received_.Contains(segment.index())) continue;
    const bool own = collective_.layout.OwnerOf(segment) == collective_.self;
    policy_.Defer(Stage::kAllGather, segment, own ? sums.Sum(segment) : Early(segment));
  }
  early_ = Buffer();
}

Bitmap AllGatherStage::ReceivedOf(MemberIndex owner) const {
  Bitmap received(collective_.layout.SegmentsOf(owner));
  const std::size_t first = collective_.layout.FirstSegment(owner).index();
  for (std::size_t i = 0; i < received.size(); ++i) {
    if (received_.Contains(first + i)) received.Insert(i);
  }
  return received;
}

std::uint64_t AllGatherStage::DeferredBytes() const {
  const SegmentStore& late = collective_.deferred->late_results();
  if (holds_deferred_.count() == 0 && late.empty()) return 0;
  std::uint64_t bytes = 0;
  for (const SegmentIndex segment : collective_.layout.Segments()) {
    if (holds_deferred_.Contains(segment.index()) || late.Contains(segment)) {
      bytes += collective_.layout.Segment(segment).bytes;
    }
  }
  return bytes;
}

}  // namespace optireduce
