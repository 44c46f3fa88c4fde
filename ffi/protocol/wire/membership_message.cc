#include "ffi/protocol/wire/membership_message.h"

#include <limits>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"
#include "ffi/protocol/wire/rank_bitmap.h"

namespace optireduce {
namespace {

// Chosen: bit 4 of the first byte, above the kinds.
constexpr std::uint8_t kAsks = 16;

void WriteBallot(ByteWriter& writer, const Ballot& ballot) {
  writer.Write(ballot.round);
  writer.Write(ballot.coordinator.value());
}

Ballot ReadBallot(ByteReader& reader) {
  const auto round = reader.Read<std::uint32_t>();
  return {.round = round, .coordinator = Rank(reader.Read<std::uint16_t>())};
}

bool IsValid(const Ballot& ballot, std::uint16_t world_size) {
  // A ballot without a round has no coordinator; the last round is invalid, since none can follow
  // it.
  if (ballot.round == 0) return ballot == Ballot();
  return ballot.coordinator.value() < world_size &&
         ballot.round < std::numeric_limits<std::uint32_t>::max();
}

// True if the fields that only some kinds have match the kind.
bool HasFieldsOfKind(const MembershipMessage& message) {
  if (message.asks && message.kind != MembershipKind::kStatus) return false;
  if (message.accepted == Ballot()) return true;
  return message.kind == MembershipKind::kVote && message.accepted <= message.ballot &&
         !message.ranks.empty();
}

// True if the fields that all kinds have match the kind.
bool Consistent(const MembershipMessage& message) {
  const bool none = message.ballot == Ballot();
  const bool plain = message.calls.empty() && message.parts == 1;
  switch (message.kind) {
    case MembershipKind::kStatus:
      return plain;
    case MembershipKind::kPrepare:
    case MembershipKind::kAccepted:
      return plain && !none && message.ranks.empty();
    case MembershipKind::kVote:
      return !none;
    case MembershipKind::kProposal:
      return !none && !message.ranks.empty();
    case MembershipKind::kDecision:
      return none && message.view > 0 && !message.ranks.empty();
  }
  return false;
}

}  // namespace

std::size_t EncodeMembership(const MembershipMessage& message, std::span<std::byte> out) {
  OR_CHECK(message.calls.size() <= kMembershipCallsMax);
  ByteWriter writer(out.first(kMembershipBytesMax));
  const auto kind = static_cast<std::uint8_t>(message.kind);
  writer.Write(static_cast<std::uint8_t>(message.asks ? kind | kAsks : kind));
  writer.Write(message.view);
  WriteBallot(writer, message.ballot);
  WriteBallot(writer, message.accepted);
  writer.Write(message.part);
  writer.Write(message.parts);
  WriteRanks(writer, message.ranks);
  for (const CallId call : message.calls) {
    writer.Write(call.collective.value());
    writer.Write(call.sequence.value());
  }
  OR_CHECK(writer.ok());
  return writer.size();
}

std::optional<MembershipMessage> ParseMembership(std::span<const std::byte> bytes,
                                                 std::uint16_t world_size) {
  if (bytes.size() > kMembershipBytesMax) return std::nullopt;
  ByteReader reader(bytes);
  MembershipMessage message;
  const auto first = reader.Read<std::uint8_t>();
  message.asks = (first & kAsks) != 0;
  message.kind = static_cast<MembershipKind>(first & ~kAsks);
  message.view = reader.Read<std::uint32_t>();
  message.ballot = ReadBallot(reader);
  message.accepted = ReadBallot(reader);
  message.part = reader.Read<std::uint16_t>();
  message.parts = reader.Read<std::uint16_t>();
  auto ranks = ReadRanks(reader, world_size);
  if (!reader.ok() || !ranks || reader.remaining() % 8 != 0) return std::nullopt;
  if (message.part >= message.parts || message.parts > kMembershipPartsMax) return std::nullopt;
  if (!IsValid(message.ballot, world_size) || !IsValid(message.accepted, world_size)) {
    return std::nullopt;
  }
  message.ranks = std::move(*ranks);
  while (reader.remaining() > 0) {
    const CollectiveId collective(reader.Read<std::uint32_t>());
    const Sequence sequence(reader.Read<std::uint32_t>());
    if (!message.calls.empty() && message.calls.back().collective >= collective) {
      return std::nullopt;
    }
    message.calls.push_back({.collective = collective, .sequence = sequence});
  }
  if (message.calls.size() > kMembershipCallsMax) return std::nullopt;
  if (!HasFieldsOfKind(message) || !Consistent(message)) return std::nullopt;
  return message;
}

}  // namespace optireduce
