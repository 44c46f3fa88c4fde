// What ranks tell each other to agree on who is a member, and the bytes of it.
//
//   0  u8   kind (lower 4 bits), flags (upper 4)
//   1  u32  view: of a decision the one that begins with it, else the sender's
//   5  u32  round, u16 coordinator of the ballot
//   11 u32  round, u16 coordinator of the accepted ballot
//   17 u16  part, u16 parts
//   21      ranks (rank_bitmap.h)
//           u32 collective, u32 sequence: any number of them, ascending

#ifndef FFI_PROTOCOL_WIRE_MEMBERSHIP_MESSAGE_H_
#define FFI_PROTOCOL_WIRE_MEMBERSHIP_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/ids.h"

namespace optireduce {

// Chosen: with header and tag below 548 bytes, the smallest datagram of a session.
inline constexpr std::size_t kMembershipBytesMax = 500;
// Chosen: calls in one message; with a bitmap of 1,024 ranks they still fit.
inline constexpr std::size_t kMembershipCallsMax = 43;
// Chosen: room for all collectives that a rank can know (2^16).
inline constexpr std::uint16_t kMembershipPartsMax = 1525;

enum class MembershipKind : std::uint8_t {
  kStatus = 1,    // whom the sender suspects; the newest ballot that it knows
  kPrepare = 2,   // of a coordinator: vote, and begin no call
  kVote = 3,      // the newest calls of the sender, or the proposal that it has accepted
  kProposal = 4,  // of a coordinator: the next view
  kAccepted = 5,  // the sender holds the proposal of this ballot
  kDecision = 6,  // more than half of the members have accepted this view
};

// An attempt to decide. Any two differ, since a coordinator counts its rounds.
struct Ballot {
  std::uint32_t round = 0;  // 0: none
  Rank coordinator;
  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

struct MembershipMessage {
  MembershipKind kind = MembershipKind::kStatus;
  bool asks = false;  // a status that wants one in return
  std::uint32_t view = 0;
  Ballot ballot{};
  Ballot accepted{};  // of a vote
  std::uint16_t part = 0;
  std::uint16_t parts = 1;
  // Suspects, in a status and in a vote that has accepted nothing; else members.
  std::vector<Rank> ranks{};
  // Of a vote the newest call of each collective; of a view the first without those removed.
  std::vector<CallId> calls{};

  friend bool operator==(const MembershipMessage&, const MembershipMessage&) = default;
};

// `out` holds kMembershipBytesMax; returns the size.
std::size_t EncodeMembership(const MembershipMessage& message, std::span<std::byte> out);
// Nothing when it is not a message of a session of `world_size` ranks.
std::optional<MembershipMessage> ParseMembership(std::span<const std::byte> bytes,
                                                 std::uint16_t world_size);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_WIRE_MEMBERSHIP_MESSAGE_H_
