#include "ffi/protocol/call/segment_codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ffi/base/prng.h"
#include "ffi/codec/reduce.h"

namespace optireduce {

namespace {

// The wire format of the rounded segments of a collective.
WireFormat RoundedFormat(const CollectiveSpec& spec) {
  return spec.wire_format == WireFormat::kAuto ? FormatController::kRounded : spec.wire_format;
}

}  // namespace

SegmentCodec::SegmentCodec(const Collective& collective, Sequence sequence, WireFormat format,
                           bool drain, BufferPool& pool)
    : collective_(collective),
      sequence_(sequence),
      format_(drain ? WireFormat::kFloat32 : format),
      pool_(pool) {
  const bool carries = collective.deferred && !collective.deferred->errors().empty();
  // A call before the drain may still round.
  if (rounds() || carries || drain) Activate();
}

void SegmentCodec::Activate() {
  if (!Rounds(collective_.spec)) return;
  for (auto* scratch : {&exact_, &rounded_}) {
    scratch->resize(collective_.layout.LargestSegmentBytes());
  }
}

void SegmentCodec::Drain() {
  format_ = WireFormat::kFloat32;
  Activate();
}

std::uint64_t SegmentCodec::KeyOf(DatagramKind kind, SegmentIndex segment) const {
  // Ranks, stages, segments and calls round independently of each other: errors average out.
  std::uint64_t key = 0;
  for (const std::uint64_t fact :
       {static_cast<std::uint64_t>(collective_.id.value()),
        static_cast<std::uint64_t>(sequence_.value()), static_cast<std::uint64_t>(segment.value()),
        static_cast<std::uint64_t>(kind), static_cast<std::uint64_t>(collective_.self.value())}) {
    key = Mix(key + Mix(fact + 1));
  }
  return key;
}

std::size_t SegmentCodec::FirstBytes(const Collective& collective, const Header& header,
                                     std::size_t bytes) {
  const bool several = Rounds(collective.spec) && (header.flags & kFlagSeveral) != 0;
  if (!several || header.segment.value() >= collective.layout.segments()) return bytes;
  return std::min(bytes,
                  EncodedBytes(RoundedFormat(collective.spec),
                               collective.layout.Segment(header.segment).bytes / sizeof(float)));
}

std::optional<std::span<const std::byte>> SegmentCodec::Decode(const Collective& collective,
                                                               const Header& header,
                                                               std::span<const std::byte> payload,
                                                               std::vector<std::byte>& scratch) {
  const CollectiveSpec& spec = collective.spec;
  if (!Rounds(spec) || (header.flags & kFlagDrain) != 0) return payload;
  if (header.segment.value() >= collective.layout.segments()) return std::nullopt;
  const std::size_t bytes = collective.layout.Segment(header.segment).bytes;
  const bool chosen = spec.wire_format == WireFormat::kAuto;
  if (chosen && payload.size() == bytes) return payload;
  const WireFormat format = RoundedFormat(spec);
  if (payload.size() != EncodedBytes(format, bytes / sizeof(float))) return std::nullopt;
  if (scratch.size() < bytes) scratch.resize(bytes);
  const std::span<std::byte> values = std::span(scratch).first(bytes);
  optireduce::Decode(format, payload, values);
  return values;
}

std::size_t SegmentCodec::PayloadBytes(SegmentIndex segment) const {
  const std::size_t bytes = collective_.layout.Segment(segment).bytes;
  if (format_ == WireFormat::kFloat32) return bytes;
  return EncodedBytes(format_, bytes / sizeof(float));
}

std::span<const std::byte> SegmentCodec::Encode(DatagramKind kind, SegmentIndex segment,
                                                std::span<const std::byte* const> parts,
                                                std::span<std::byte> out) {
  std::span<const std::byte> values(parts.front(), collective_.layout.Segment(segment).bytes);
  if (parts.size() > 1) {
    SumContributions(ElementType::kFloat32, parts, values.size() / sizeof(float), 1.0,
                     exact_.data());
    values = std::span(exact_).first(values.size());
  }
  optireduce::Encode(format_, values, KeyOf(kind, segment), out);
  return values;
}

std::span<const std::byte> SegmentCodec::Round(SegmentIndex segment,
                                               std::span<const std::byte> exact,
                                               std::span<const std::byte> encoded,
                                               SegmentStore* errors) {
  const std::span<std::byte> rounded = std::span(rounded_).first(exact.size());
  optireduce::Decode(format_, encoded, rounded);
  if (errors == nullptr) return rounded;
  const std::span<std::byte> error = std::span(exact_).first(exact.size());
  if (exact.data() != error.data()) std::memcpy(error.data(), exact.data(), exact.size());
  if (TakeRoundingError(error, rounded)) errors->Add(segment, error);
  return rounded;
}

std::span<std::byte> SegmentCodec::KeptSum(SegmentIndex segment) const {
  const std::size_t bytes = PayloadBytes(collective_.layout.FirstSegment(collective_.self));
  const std::size_t within =
      segment.index() - collective_.layout.FirstSegment(collective_.self).index();
  OR_CHECK((within + 1) * bytes <= sums_.size());
  return {sums_.data() + within * bytes, PayloadBytes(segment)};
}

void SegmentCodec::RoundSum(SegmentIndex segment, Reduction& reduction, SegmentStore* errors) {
  std::array<const std::byte*, 2> parts = {reduction.Sum(segment).data()};
  const bool joins = errors != nullptr && errors->Contains(segment);
  if (joins) parts[1] = errors->Get(segment).data();
  if (!rounds() && !joins) return;
  const BucketLayout& layout = collective_.layout;
  if (rounds() && sums_.size() == 0) {
    sums_ = pool_.Take(layout.SegmentsOf(collective_.self) *
                       PayloadBytes(layout.FirstSegment(collective_.self)));
  }
  const std::span<std::byte> encoded =
      rounds() ? KeptSum(segment) : std::span(rounded_).first(layout.Segment(segment).bytes);
  const std::span<const std::byte> exact =
      Encode(DatagramKind::kResult, segment, std::span(parts).first(joins ? 2 : 1), encoded);
  if (joins) errors->Remove(segment);
  reduction.ReplaceSum(segment, rounds() ? Round(segment, exact, encoded, errors) : exact);
}

}  // namespace optireduce
