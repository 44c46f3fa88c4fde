// The part of an exchange whose values are rounded to a wire format. They are float32 everywhere
// but in datagrams: what is rounded is written back over the values, which encodes to the same
// bytes as often as it is sent.
//
// Where late data is deferred, so is what rounding takes: value = rounded value + error, and the
// error joins what is sent next of the segment. A drain is not rounded, so that it brings all
// errors that there are. As it begins at each peer when all before it is delivered there, nothing
// rounds after it.

#include <array>
#include <cstring>

#include "ffi/base/check.h"
#include "ffi/base/prng.h"
#include "ffi/codec/reduce.h"
#include "ffi/protocol/call/exchange.h"

namespace optireduce {

std::uint64_t Exchange::RoundingKey(DatagramKind kind, SegmentIndex segment) const {
  // Ranks, stages, segments and calls round independently of each other, so that errors average
  // out.
  std::uint64_t key = 0;
  for (const std::uint64_t fact :
       {static_cast<std::uint64_t>(collective_.id.value()),
        static_cast<std::uint64_t>(sequence_.value()), static_cast<std::uint64_t>(segment.value()),
        static_cast<std::uint64_t>(kind), static_cast<std::uint64_t>(collective_.self.value())}) {
    key = Mix(key + Mix(fact + 1));
  }
  return key;
}

std::optional<std::span<const std::byte>> Exchange::Decoded(const Collective& collective,
                                                            const Header& header,
                                                            std::span<const std::byte> payload,
                                                            std::vector<std::byte>& scratch) {
  const CollectiveSpec& spec = collective.spec;
  if (!Rounds(spec) || (header.flags & kFlagDrain) != 0) return payload;
  if (header.segment.value() >= collective.layout.segments()) return std::nullopt;
  const std::size_t bytes = collective.layout.Segment(header.segment).bytes;
  if (payload.size() != EncodedBytes(spec.wire_format, bytes / sizeof(float))) return std::nullopt;
  if (scratch.size() < bytes) scratch.resize(bytes);
  const std::span<std::byte> values = std::span(scratch).first(bytes);
  Decode(spec.wire_format, payload, values);
  return values;
}

void Exchange::ReplaceContribution(SegmentIndex segment, std::span<const std::byte> values) {
  const auto& kept = kept_[collective_.layout.OwnerOf(segment).index()];
  if (kept && kept->Contains(segment)) {
    kept->Replace(segment, values);
  } else {
    bucket_.Write(collective_.layout.Segment(segment).offset, values);
  }
}

void Exchange::WriteRounded(MemberIndex to, const Outbox::Item& item, std::span<std::byte> out) {
  const WireFormat format = rounds() ? collective_.spec.wire_format : WireFormat::kFloat32;
  const std::uint64_t key = RoundingKey(item.kind, item.segment);
  const bool contribution = item.kind == DatagramKind::kContribution;
  std::span<const std::byte> values = OwnPayload(item, scratch_);
  // What joins a contribution is part of it from the first time on that it is sent.
  const bool joins = deferred_ != nullptr && !(contribution && item.retransmission);
  std::array<const std::byte*, 3> parts = {values.data()};
  std::size_t count = 1;
  if (const SegmentStore* joining = joins ? Joining(to, item) : nullptr) {
    parts[count++] = joining->Get(item.segment).data();
  }
  if (joins && contribution && deferred_->errors().Contains(item.segment)) {
    parts[count++] = deferred_->errors().Get(item.segment).data();
  }
  const std::span<std::byte> exact = std::span(exact_).first(values.size());
  if (count > 1) {
    SumContributions(ElementType::kFloat32, std::span(parts).first(count),
                     values.size() / sizeof(float), 1.0, exact.data());
    values = exact;
  }
  Encode(format, values, key, out);
  // A result that nothing joins was rounded with its sum.
  if (deferred_ == nullptr || item.retransmission || (!contribution && count == 1)) return;
  if (contribution) deferred_->errors().Remove(item.segment);
  const std::span<std::byte> rounded = std::span(rounded_).first(values.size());
  Decode(format, out, rounded);
  if (count == 1) std::memcpy(exact.data(), values.data(), values.size());
  if (TakeRoundingError(exact, rounded)) {
    (contribution ? deferred_->errors() : deferred_->deferred_sends(Stage::kAllGather, to))
        .Add(item.segment, exact);
  }
  if (contribution) ReplaceContribution(item.segment, rounded);
}

void Exchange::RoundSum(SegmentIndex segment) {
  const std::span<const std::byte> sum = reduction_.Sum(segment);
  const std::size_t count = sum.size() / sizeof(float);
  const std::span<std::byte> exact = std::span(exact_).first(sum.size());
  SegmentStore* const errors = deferred_ != nullptr ? &deferred_->errors() : nullptr;
  std::array<const std::byte*, 2> parts = {sum.data()};
  const bool joins = errors != nullptr && errors->Contains(segment);
  if (joins) parts[1] = errors->Get(segment).data();
  SumContributions(ElementType::kFloat32, std::span(parts).first(joins ? 2 : 1), count, 1.0,
                   exact.data());
  if (joins) errors->Remove(segment);
  if (!rounds()) return reduction_.ReplaceSum(segment, exact);
  const WireFormat format = collective_.spec.wire_format;
  const std::span<std::byte> rounded = std::span(rounded_).first(sum.size());
  const std::span<std::byte> encoded = std::span(scratch_).first(EncodedBytes(format, count));
  Encode(format, exact, RoundingKey(DatagramKind::kResult, segment), encoded);
  Decode(format, encoded, rounded);
  reduction_.ReplaceSum(segment, rounded);
  if (errors != nullptr && TakeRoundingError(exact, rounded)) errors->Add(segment, exact);
}

}  // namespace optireduce
