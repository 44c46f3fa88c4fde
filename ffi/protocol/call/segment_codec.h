// The values of one call in its wire format. Values are float32 everywhere but in datagrams:
// rounded values replace the exact ones, and encode to the same values as often as they are sent. A
// sum, which goes to all other members, is encoded once, and kept so.
//
// Where late data is deferred, so is the rounding error: value = rounded value + error, and the
// error joins the next data that is sent of the segment. A drain is not rounded: it brings all
// errors. It begins at each peer once all before it is delivered there, so nothing rounds after it.

#ifndef FFI_PROTOCOL_CALL_SEGMENT_CODEC_H_
#define FFI_PROTOCOL_CALL_SEGMENT_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/protocol/bucket/reduction.h"
#include "ffi/protocol/bucket/segment_store.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class SegmentCodec {
 public:
  // The data that this rank sends in the call is rounded to `format`, unless the call is a drain.
  // `collective` and `pool` must outlive this.
  SegmentCodec(const Collective& collective, Sequence sequence, WireFormat format, bool drain,
               BufferPool& pool);

  // The size of the first segment in the payload of a datagram, which is `bytes` long. At most
  // `bytes`.
  static std::size_t FirstBytes(const Collective& collective, const Header& header,
                                std::size_t bytes);
  // The float32 values of a segment that arrives, in `scratch` where it arrives rounded; nothing if
  // the payload has another size than the segment.
  static std::optional<std::span<const std::byte>> Decode(const Collective& collective,
                                                          const Header& header,
                                                          std::span<const std::byte> payload,
                                                          std::vector<std::byte>& scratch);

  // Payloads and sums pass through this class: they are rounded, or take the errors of earlier
  // calls.
  bool active() const { return !exact_.empty(); }
  bool rounds() const { return format_ != WireFormat::kFloat32; }
  // The call drains its collective.
  void Drain();
  std::size_t PayloadBytes(SegmentIndex segment) const;

  // Writes the sum of `parts`, one to three of them, to `out` in the wire format. Returns that sum,
  // which is valid until the next call.
  std::span<const std::byte> Encode(DatagramKind kind, SegmentIndex segment,
                                    std::span<const std::byte* const> parts,
                                    std::span<std::byte> out);
  // The values that receivers read in `encoded`, which Encode() has made of `exact`. The difference
  // is added to `errors`, unless that is null.
  std::span<const std::byte> Round(SegmentIndex segment, std::span<const std::byte> exact,
                                   std::span<const std::byte> encoded, SegmentStore* errors);
  // Replaces a sum by its rounded value: all ranks hold the same bits.
  void RoundSum(SegmentIndex segment, Reduction& reduction, SegmentStore* errors);
  // A sum as RoundSum() has encoded it. Needs rounds().
  std::span<const std::byte> EncodedSum(SegmentIndex segment) const { return KeptSum(segment); }

 private:
  void Activate();
  std::uint64_t KeyOf(DatagramKind kind, SegmentIndex segment) const;
  std::span<std::byte> KeptSum(SegmentIndex segment) const;

  const Collective& collective_;
  Sequence sequence_;
  WireFormat format_;
  BufferPool& pool_;
  Buffer sums_;                   // encoded sums of this rank's shard, in the order of its segments
  std::vector<std::byte> exact_;  // one segment each; empty without a wire format
  std::vector<std::byte> rounded_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_SEGMENT_CODEC_H_
