// The messages by which ranks agree on the members of the session, and their encoding.
//
//   0  u8   kind (lower 4 bits), flags (upper 4)
//   1  u32  view: of a decision the view that it begins, otherwise the sender's view
//   5  u32  round, u16 coordinator of the ballot
//   11 u32  round, u16 coordinator of the accepted ballot
//   17 u16  part, u16 parts
//   21      ranks (rank_bitmap.h)
//           u32 collective, u32 sequence: any number of pairs, ascending

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
// Calls in one message. Chosen: these still fit beside a bitmap of 1,024 ranks.
inline constexpr std::size_t kMembershipCallsMax = 43;
// Chosen: room for all collectives that a rank can know (2^16).
inline constexpr std::uint16_t kMembershipPartsMax = 1525;

enum class MembershipKind : std::uint8_t {
  kStatus = 1,    // the suspects of the sender, and the newest ballot that it knows
  kPrepare = 2,   // a coordinator asks to vote, and to begin no call
  kVote = 3,      // the newest calls of the sender, or the proposal that it has accepted
  kProposal = 4,  // a coordinator proposes the next view
  kAccepted = 5,  // the sender holds the proposal of this ballot
  kDecision = 6,  // a majority of the members has accepted this view
};

// An attempt to decide. Ballots are unique, since a coordinator counts its rounds.
struct Ballot {
  std::uint32_t round = 0;  // 0: none
  Rank coordinator;
  friend auto operator<=>(const Ballot&, const Ballot&) = default;
};

struct MembershipMessage {
  MembershipKind kind = MembershipKind::kStatus;
  bool asks = false;  // a status that requests one in return
  std::uint32_t view = 0;
  Ballot ballot{};
  Ballot accepted{};  // set only in a vote
  std::uint16_t part = 0;
  std::uint16_t parts = 1;
  // Suspects in a status and in a vote that has accepted no proposal, otherwise members.
  std::vector<Rank> ranks{};
  // The newest call of each collective in a vote, the first call without the removed ranks in a
  // view.
  std::vector<CallId> calls{};

  friend bool operator==(const MembershipMessage&, const MembershipMessage&) = default;
};

// `out` holds kMembershipBytesMax; returns the size.
std::size_t EncodeMembership(const MembershipMessage& message, std::span<std::byte> out);
// Nothing unless the bytes are a message of a session of `world_size` ranks.
std::optional<MembershipMessage> ParseMembership(std::span<const std::byte> bytes,
                                                 std::uint16_t world_size);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_WIRE_MEMBERSHIP_MESSAGE_H_
