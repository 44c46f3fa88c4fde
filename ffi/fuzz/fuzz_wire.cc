// Fuzzing of the parser: every function that reads bytes, and the round trip of accepted inputs;
// and of the agreement on members, whose state depends on earlier messages.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"
#include "ffi/fuzz/reach.h"
#include "ffi/protocol/membership/membership.h"
#include "ffi/protocol/wire/membership_message.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Chosen: the smallest datagram of any session, whose announcements may be cut, and a datagram with
// room for every announcement.
constexpr std::size_t kPayloadBytesMin = 548 - kOverheadBytes;
constexpr std::size_t kPayloadBytesMax = 4096 - kOverheadBytes;
constexpr std::uint16_t kWorldSizeMax = 1024;

void CheckHeader(std::span<const std::byte> datagram) {
  const ParsedHeader parsed = ParseHeader(datagram);
  Reach(parsed.header ? static_cast<std::uint32_t>(parsed.header->kind) : 0);
  if (!parsed.header) return;
  std::array<std::byte, kHeaderBytes> again;
  EncodeHeader(*parsed.header, again);
  OR_CHECK(std::ranges::equal(again, datagram.first(kHeaderBytes)));
}

void CheckAcknowledgement(std::span<const std::byte> payload) {
  const std::optional<Acknowledgement> acknowledgement = ParseAcknowledgement(payload);
  if (!acknowledgement) return;
  Reach(16, acknowledgement->words);
  Reach(26, acknowledgement->refused_words);
  Reach(27, acknowledgement->refusals.size());
  std::vector<std::byte> again(std::max(payload.size(), kAcknowledgementBytesMax));
  const std::size_t bytes = EncodeAcknowledgement(*acknowledgement, again);
  OR_CHECK(std::ranges::equal(std::span(again).first(bytes), payload));
  for (const std::uint64_t number :
       {std::uint64_t{0}, acknowledgement->largest, acknowledgement->largest + 1,
        acknowledgement->largest / 2, acknowledgement->largest - 64 * acknowledgement->words}) {
    OR_CHECK(!acknowledgement->Contains(number) || number <= acknowledgement->largest);
    OR_CHECK(!acknowledgement->Refuses(number) || number <= acknowledgement->largest);
  }
}

void CheckAnnouncement(std::span<const std::byte> payload, std::uint16_t world_size) {
  const std::optional<CollectiveSpec> spec = ParseAnnouncement(payload, world_size);
  if (!spec) return;
  Reach(17, spec->members.size());
  Reach(18, spec->elements);
  Reach(19, spec->name.size());
  Reach(20 + static_cast<std::uint32_t>(spec->element_type));
  OR_CHECK(!spec->members.empty() && spec->members.back().value() < world_size);
  OR_CHECK(std::ranges::is_sorted(spec->members));
  std::vector<std::byte> out(kPayloadBytesMax);
  out.resize(EncodeAnnouncement(*spec, spec->description, out));
  const std::optional<CollectiveSpec> again = ParseAnnouncement(out, world_size);
  // A text beyond the limit is cut; nothing else changes.
  OR_CHECK(again && SameCollective(*again, *spec));
  OR_CHECK(again->name == spec->name.substr(0, again->name.size()));
  if (again->name == spec->name) OR_CHECK(IdOf(*again) == IdOf(*spec));
  std::vector<std::byte> small(kPayloadBytesMin);
  OR_CHECK(EncodeAnnouncement(*spec, spec->description, small) <= small.size());
}

std::vector<Rank> ReadMembers(ByteReader& reader) {
  std::vector<Rank> members;
  const auto steps = reader.ReadBytes(reader.Read<std::uint8_t>());
  for (std::uint16_t member = 0; const std::byte step : steps) {
    member = static_cast<std::uint16_t>(member + 1 + std::to_integer<unsigned>(step) % 4);
    members.emplace_back(member);
  }
  if (members.empty()) members.emplace_back(std::uint16_t{0});
  return members;
}

// The input as the contents of an announcement, and as damage to its bytes.
void CheckBuilt(std::span<const std::byte> input) {
  ByteReader reader(input);
  CollectiveSpec spec;
  const auto chance = reader.Read<std::uint8_t>();
  spec.fingerprint = reader.Read<std::uint64_t>();
  spec.elements = reader.Read<std::uint64_t>(chance % 6 + 1u) % (std::uint64_t{1} << 37);
  spec.element_type = static_cast<ElementType>(reader.Read<std::uint8_t>() % kElementTypes);
  if (spec.element_type == ElementType::kFloat32) {
    spec.wire_format = static_cast<WireFormat>(chance / 6 % kWireFormats);
  }
  spec.reduce_scatter = static_cast<LatePolicy>(chance % 3);
  const bool waits = std::array{true, false, chance % 2 == 0}[chance % 3];
  spec.all_gather = waits ? LatePolicy::kWait : spec.reduce_scatter;
  spec.reduce_scatter_deadline = Duration(reader.Read<std::uint32_t>() + std::int64_t{1});
  spec.all_gather_deadline = Duration(reader.Read<std::uint32_t>() + std::int64_t{1});
  spec.members = ReadMembers(reader);
  if (chance >= 192) {
    spec.elements -= spec.elements % spec.members.size();
    spec.all_gather = LatePolicy::kNoStage;
    spec.all_gather_deadline = {};
  }
  spec.name = std::string(reader.Read<std::uint8_t>(), 'n');
  spec.description = std::string(reader.Read<std::uint16_t>() % 600, 'd');
  const std::size_t bytes_max = kPayloadBytesMin + reader.Read<std::uint8_t>() * 8u;
  std::vector<std::byte> payload(bytes_max);
  payload.resize(EncodeAnnouncement(spec, spec.description, payload));
  const std::optional<CollectiveSpec> read = ParseAnnouncement(payload, kWorldSizeMax);
  OR_CHECK(read && SameCollective(*read, spec));
  Reach(32 + chance % 4u, read->name.size());
  while (reader.ok() && reader.remaining() > 0) {
    const auto at = reader.Read<std::uint16_t>();
    payload[at % payload.size()] = static_cast<std::byte>(reader.Read<std::uint8_t>());
    if (at % 16 == 0) payload.resize(1 + at / 16u % payload.size());
    CheckAnnouncement(payload, kWorldSizeMax);
  }
}

void CheckMembership(std::span<const std::byte> payload, std::uint16_t world_size) {
  const std::optional<MembershipMessage> message = ParseMembership(payload, world_size);
  if (!message) return;
  Reach(40 + static_cast<std::uint32_t>(message->kind), message->calls.size());
  OR_CHECK(message->ranks.empty() || message->ranks.back().value() < world_size);
  std::array<std::byte, kMembershipBytesMax> out;
  const std::size_t bytes = EncodeMembership(*message, out);
  OR_CHECK(ParseMembership(std::span(out).first(bytes), world_size) == message);
}

constexpr std::uint16_t kRanks = 5;

Rank ReadRank(ByteReader& reader) {
  return Rank(static_cast<std::uint16_t>(reader.Read<std::uint8_t>() % kRanks));
}

// A message with repeated fields, from the next bytes; bit r of `ranks` is rank r.
MembershipMessage ReadMessage(ByteReader& reader, std::uint32_t view, std::uint8_t& ranks) {
  const auto ballot = [&] {
    const std::uint32_t round = reader.Read<std::uint8_t>() % 4u;
    return Ballot{.round = round, .coordinator = round == 0 ? Rank() : ReadRank(reader)};
  };
  MembershipMessage message{
      .kind = static_cast<MembershipKind>(reader.Read<std::uint8_t>() % 8),
      .view = view + reader.Read<std::uint8_t>() % 3,
      .ballot = ballot(),
      .accepted = ballot(),
      .part = static_cast<std::uint16_t>(reader.Read<std::uint8_t>() % 2),
      .parts = static_cast<std::uint16_t>(1 + reader.Read<std::uint8_t>() % 2)};
  ranks = reader.Read<std::uint8_t>();
  for (std::uint16_t r = 0; r < kRanks; ++r) {
    if ((ranks >> r) & 1) message.ranks.emplace_back(r);
  }
  const CollectiveId collective(reader.Read<std::uint8_t>());
  message.calls = {{.collective = collective, .sequence = Sequence(reader.Read<std::uint8_t>())}};
  return message;
}

// The input as messages from other ranks.
void CheckAgreement(std::span<const std::byte> input) {
  constexpr std::uint16_t kLane = 0;
  Membership membership(Rank(0), kRanks, std::chrono::milliseconds(400));
  ByteReader reader(input);
  Instant now{};
  std::array<std::byte, kMembershipBytesMax> bytes;
  while (reader.ok() && reader.remaining() > 0) {
    std::uint8_t ranks = 0;
    const MembershipMessage message = ReadMessage(reader, membership.view().number, ranks);
    const std::size_t size = EncodeMembership(message, bytes);
    now += std::chrono::milliseconds(reader.Read<std::uint8_t>());
    const Rank from = ReadRank(reader);
    const bool taken = membership.Handle(now, kLane, from, std::span(bytes).first(size));
    if (ranks & 32) membership.Suspect(now, kLane, ReadRank(reader));
    const CallId call = message.calls.front();
    membership.TryStart(membership.view().number, call, call.collective);
    membership.HandleTimeout(now);
    while (const auto outgoing = membership.Poll(now, kLane, bytes)) {
      OR_CHECK(ParseMembership(std::span(bytes).first(outgoing->bytes), kRanks).has_value());
    }
    OR_CHECK(!membership.view().members.empty());
    Reach(50 + (taken ? 1u : 0u), membership.view().number * 8 + membership.view().members.size());
    Reach(52 + (membership.frozen() ? 1u : 0u) + (membership.stuck() ? 2u : 0u));
  }
}

}  // namespace
}  // namespace optireduce

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Memory of exactly this size, so that a sanitizer detects a read beyond it.
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> input(bytes, bytes + size);
  optireduce::CheckHeader(input);
  optireduce::CheckAcknowledgement(input);
  optireduce::CheckBuilt(input);
  for (const std::uint16_t world_size : {optireduce::kWorldSizeMax, std::uint16_t{3}}) {
    optireduce::CheckAnnouncement(input, world_size);
    optireduce::CheckMembership(input, world_size);
  }
  optireduce::CheckAgreement(input);
  return 0;
}
