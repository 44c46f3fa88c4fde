#include "ffi/protocol/wire/wire.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"
#include "ffi/base/prng.h"
#include "ffi/protocol/wire/rank_bitmap.h"

namespace optireduce {
namespace {

// Chosen: longer texts belong in a log; the datagram of the smallest path still holds this many.
constexpr std::size_t kTextBytesMax = 400;

// Chosen: 2^37 elements (512 GiB of float32) are beyond any bucket, and 32 bits count their
// segments even at 63 elements per segment (float64 in the smallest datagram).
constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 37;

// Chosen: longer than any useful deadline, and sums of instants do not overflow.
constexpr Duration kDeadlineMax = std::chrono::hours(24);

// Source: the layout of a refusal in wire.h.
constexpr std::size_t kRefusalBytes = 4 + 4;

void WriteText(ByteWriter& writer, std::string_view text, std::size_t bytes_max) {
  const std::string_view cut = text.substr(0, std::min({text.size(), bytes_max, kTextBytesMax}));
  writer.Write(static_cast<std::uint16_t>(cut.size()));
  writer.Write(cut);
}

std::string ReadText(ByteReader& reader) {
  const auto bytes = reader.ReadBytes(reader.Read<std::uint16_t>());
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Duration ReadDuration(ByteReader& reader) {
  return Duration(static_cast<Duration::rep>(reader.Read<std::uint64_t>()));
}

std::optional<LatePolicy> PolicyOf(std::uint8_t value) {
  if (value > static_cast<std::uint8_t>(LatePolicy::kNoStage)) return std::nullopt;
  return static_cast<LatePolicy>(value);
}

// Selects one of the two meanings of the last field.
bool HasSenderInfo(DatagramKind kind) {
  return kind == DatagramKind::kContribution || kind == DatagramKind::kGaveUp ||
         kind == DatagramKind::kMembership;
}

}  // namespace

void EncodeHeader(const Header& header, std::span<std::byte, kHeaderBytes> out) {
  OR_CHECK(header.number <= kNumberMax);
  ByteWriter writer(out);
  writer.Write(
      static_cast<std::uint8_t>(kWireVersion << 4 | static_cast<std::uint8_t>(header.kind)));
  writer.Write(header.flags);
  writer.Write(header.source.value());
  writer.Write(header.session);
  writer.Write(header.call.collective.value());
  writer.Write(header.call.sequence.value());
  writer.Write(header.segment.value());
  writer.Write(header.number, 6);
  writer.Write(HasSenderInfo(header.kind) ? header.sender_info : header.contributors);
  OR_CHECK(writer.ok() && writer.size() == kHeaderBytes);
}

ParsedHeader ParseHeader(std::span<const std::byte> datagram) {
  if (datagram.size() < kOverheadBytes) return {.header = {}, .error = ParseError::kMalformed};
  ByteReader reader(datagram);
  const auto version_and_kind = reader.Read<std::uint8_t>();
  if (version_and_kind >> 4 != kWireVersion) return {.header = {}, .error = ParseError::kVersion};
  const std::uint8_t kind = version_and_kind & 0xF;
  if (kind < static_cast<std::uint8_t>(DatagramKind::kContribution) ||
      kind > static_cast<std::uint8_t>(DatagramKind::kReturned)) {
    return {.header = {}, .error = ParseError::kMalformed};
  }
  Header header;
  header.kind = static_cast<DatagramKind>(kind);
  header.flags = reader.Read<std::uint8_t>();
  header.source = Rank(reader.Read<std::uint16_t>());
  header.session = reader.Read<std::uint32_t>();
  header.call.collective = CollectiveId(reader.Read<std::uint32_t>());
  header.call.sequence = Sequence(reader.Read<std::uint32_t>());
  header.segment = SegmentIndex(reader.Read<std::uint32_t>());
  header.number = reader.Read<std::uint64_t>(6);
  (HasSenderInfo(header.kind) ? header.sender_info : header.contributors) =
      reader.Read<std::uint16_t>();
  return {.header = header, .error = {}};
}

bool Acknowledgement::Contains(std::uint64_t number) const {
  if (number >= largest) return number == largest;
  const std::uint64_t back = largest - 1 - number;
  return back < words * 64 && (bits[back / 64] >> (back % 64)) & 1;
}

bool Acknowledgement::Refuses(std::uint64_t number) const {
  if (number > largest) return false;
  const std::uint64_t back = largest - number;
  return back < refused_words * 64 && (refused[back / 64] >> (back % 64)) & 1;
}

std::size_t EncodeAcknowledgement(const Acknowledgement& acknowledgement,
                                  std::span<std::byte> out) {
  OR_CHECK(out.size() >= kAcknowledgementBytesMax);
  OR_CHECK(acknowledgement.words + acknowledgement.refused_words <= kAcknowledgedWordsMax);
  ByteWriter writer(out);
  const auto delay =
      std::chrono::duration_cast<std::chrono::microseconds>(acknowledgement.delay).count();
  writer.Write(acknowledgement.largest, 6);
  writer.Write(static_cast<std::uint32_t>(std::clamp<std::int64_t>(delay, 0, UINT32_MAX)));
  writer.Write(acknowledgement.incast);
  writer.Write(static_cast<std::uint8_t>(acknowledgement.words));
  writer.Write(static_cast<std::uint8_t>(acknowledgement.refused_words));
  for (std::size_t i = 0; i < acknowledgement.words; ++i) writer.Write(acknowledgement.bits[i]);
  for (std::size_t i = 0; i < acknowledgement.refused_words; ++i) {
    writer.Write(acknowledgement.refused[i]);
  }
  for (const CallId& first : acknowledgement.refusals) {
    if (out.size() - writer.size() < kRefusalBytes) break;
    writer.Write(first.collective.value());
    writer.Write(first.sequence.value());
  }
  OR_CHECK(writer.ok());
  return writer.size();
}

std::optional<Acknowledgement> ParseAcknowledgement(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Acknowledgement acknowledgement;
  acknowledgement.largest = reader.Read<std::uint64_t>(6);
  acknowledgement.delay = std::chrono::microseconds(reader.Read<std::uint32_t>());
  acknowledgement.incast = reader.Read<std::uint8_t>();
  acknowledgement.words = reader.Read<std::uint8_t>();
  acknowledgement.refused_words = reader.Read<std::uint8_t>();
  if (acknowledgement.words + acknowledgement.refused_words > kAcknowledgedWordsMax) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < acknowledgement.words; ++i) {
    acknowledgement.bits[i] = reader.Read<std::uint64_t>();
  }
  for (std::size_t i = 0; i < acknowledgement.refused_words; ++i) {
    acknowledgement.refused[i] = reader.Read<std::uint64_t>();
  }
  if (!reader.ok() || reader.remaining() % kRefusalBytes != 0) return std::nullopt;
  while (reader.remaining() > 0) {
    const CollectiveId collective(reader.Read<std::uint32_t>());
    acknowledgement.refusals.push_back(
        {.collective = collective, .sequence = Sequence(reader.Read<std::uint32_t>())});
  }
  return acknowledgement;
}

std::size_t EncodeAnnouncement(const CollectiveSpec& spec, std::string_view text,
                               std::span<std::byte> out) {
  OR_CHECK(!spec.members.empty());
  ByteWriter writer(out);
  writer.Write(spec.fingerprint);
  writer.Write(static_cast<std::uint8_t>(spec.element_type));
  writer.Write(static_cast<std::uint8_t>(spec.wire_format));
  writer.Write(static_cast<std::uint8_t>(spec.reduce_scatter));
  writer.Write(static_cast<std::uint8_t>(spec.all_gather));
  writer.Write(spec.elements);
  writer.Write(static_cast<std::uint64_t>(spec.reduce_scatter_deadline.count()));
  writer.Write(static_cast<std::uint64_t>(spec.all_gather_deadline.count()));
  WriteRanks(writer, spec.members);
  OR_CHECK(writer.ok() && out.size() - writer.size() >= 4);
  const std::size_t text_bytes = out.size() - writer.size() - 4;
  WriteText(writer, spec.name, text_bytes / 2);
  WriteText(writer, text, text_bytes - std::min(spec.name.size(), text_bytes / 2));
  OR_CHECK(writer.ok());
  return writer.size();
}

namespace {

// The fields of an announcement fit each other.
bool IsPossible(const CollectiveSpec& spec) {
  for (const Duration deadline : {spec.reduce_scatter_deadline, spec.all_gather_deadline}) {
    if (deadline < Duration::zero() || deadline > kDeadlineMax) return false;
  }
  if (Rounds(spec) && spec.element_type != ElementType::kFloat32) return false;
  if (spec.members.empty() || spec.elements > kElementsMax) return false;
  return HasMode(spec) && HasWholeShards(spec);
}

}  // namespace

std::optional<CollectiveSpec> ParseAnnouncement(std::span<const std::byte> payload,
                                                std::uint16_t world_size) {
  ByteReader reader(payload);
  CollectiveSpec spec;
  spec.fingerprint = reader.Read<std::uint64_t>();
  const auto element_type = reader.Read<std::uint8_t>();
  const auto wire_format = reader.Read<std::uint8_t>();
  const auto reduce_scatter = PolicyOf(reader.Read<std::uint8_t>());
  const auto all_gather = PolicyOf(reader.Read<std::uint8_t>());
  spec.elements = reader.Read<std::uint64_t>();
  spec.reduce_scatter_deadline = ReadDuration(reader);
  spec.all_gather_deadline = ReadDuration(reader);
  auto members = ReadRanks(reader, world_size);
  spec.name = ReadText(reader);
  spec.description = ReadText(reader);
  if (!reader.ok() || reader.remaining() != 0) return std::nullopt;
  if (!reduce_scatter || !all_gather || !members) return std::nullopt;
  if (element_type >= kElementTypes || wire_format >= kWireFormats) return std::nullopt;
  spec.element_type = static_cast<ElementType>(element_type);
  spec.wire_format = static_cast<WireFormat>(wire_format);
  spec.reduce_scatter = *reduce_scatter;
  spec.all_gather = *all_gather;
  spec.members = std::move(*members);
  return IsPossible(spec) ? std::optional(std::move(spec)) : std::nullopt;
}

std::uint64_t HashBytes(std::string_view bytes, std::uint64_t seed) {
  // Source: FNV-1a, 64 bits (offset basis and prime by Fowler, Noll, Vo).
  std::uint64_t hash = 0xCBF29CE484222325ull ^ seed;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3ull;
  return hash;
}

CollectiveId IdOf(const CollectiveSpec& spec) {
  std::uint64_t hash = HashBytes(spec.name, spec.fingerprint);
  for (const std::uint64_t fact :
       {static_cast<std::uint64_t>(spec.element_type), static_cast<std::uint64_t>(spec.wire_format),
        spec.elements, static_cast<std::uint64_t>(spec.reduce_scatter),
        static_cast<std::uint64_t>(spec.all_gather),
        static_cast<std::uint64_t>(spec.reduce_scatter_deadline.count()),
        static_cast<std::uint64_t>(spec.all_gather_deadline.count())}) {
    hash = Mix(hash ^ Mix(fact + 1));
  }
  for (const Rank member : spec.members) hash = Mix(hash ^ Mix(member.value() + 1u));
  return CollectiveId(static_cast<std::uint32_t>(Mix(hash)));
}

CollectiveId BucketOf(const CollectiveSpec& spec) {
  CollectiveSpec bucket = spec;
  bucket.elements = 0;
  return IdOf(bucket);
}

CollectiveId IdWithoutMembers(const CollectiveSpec& spec) {
  CollectiveSpec of_any = spec;
  of_any.members.clear();
  return IdOf(of_any);
}

}  // namespace optireduce
