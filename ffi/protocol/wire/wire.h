// The datagram: a 28-byte little-endian header, a payload, a 12-byte tag. The one place that
// interprets bytes: code after ParseHeader and its siblings may trust the values.
//
//   0  u8   version (upper 4 bits), kind (lower 4)
//   1  u8   flags
//   2  u16  source rank
//   4  u32  session
//   8  u32  collective
//   12 u32  sequence
//   16 u32  segment; of a call that was given up: the number of earlier calls that were given up
//           with it; of a message about members: the lengths of datagrams that do not pass
//           (upper 16 bits), and that do, from the sender to some rank; 0: there is none
//   20 u48  number: counts the datagrams of one direction; the nonce of the tag
//   26 u16  in a result: the number of its contributors; in a contribution where late data is
//           deferred: a SenderInfo; where late data is dropped: the duration of a stage
//           (CallTiming::SampleFor); of a call that was given up: the rank to blame;
//           of a message about members: that rank
//
// The identity (collective, sequence, segment, source) is in the header, and independent of the
// order of arrival. The shard is not a field: segments are counted over the whole bucket. The epoch
// is one of the inputs from which the session tag and the keys are derived.

#ifndef FFI_PROTOCOL_WIRE_WIRE_H_
#define FFI_PROTOCOL_WIRE_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/crypto/seal.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Chosen: grows with every change of the format; ranks of different versions ignore each other.
inline constexpr std::uint8_t kWireVersion = 7;
// Chosen: the layout above; 40 bytes with the tag.
inline constexpr std::size_t kHeaderBytes = 28;
// Chosen: the bytes of a datagram in addition to its payload.
inline constexpr std::size_t kOverheadBytes = kHeaderBytes + kTagBytes;
// Chosen: a 48-bit counter, which lasts four years at two million datagrams a second.
inline constexpr std::uint64_t kNumberMax = (std::uint64_t{1} << 48) - 1;

enum class DatagramKind : std::uint8_t {
  kContribution = 1,     // a segment for the owner of its shard
  kResult = 2,           // a reduced segment from its owner, or from a relay, to every member
  kAcknowledgement = 3,  // the numbers that arrived
  kAnnouncement = 4,     // a collective's description
  kProbe = 5,            // requests an acknowledgement
  kLeave = 6,            // the sender makes no more calls
  kMembership = 7,       // the members of the session (membership_message.h); not acknowledged
  // With the payload of an announcement:
  kWaiting = 8,    // the sender's program waits in this call
  kGaveUp = 9,     // the sender has ended this call; its error is in the description's place
  kDraining = 10,  // the sender's program waits in a drain, whose number may not be below this
  kReturned = 11,  // the sender's program waits for the call after this one, which it skips
};

// True for kinds with the payload of an announcement.
constexpr bool IsSegment(DatagramKind kind) {
  return kind == DatagramKind::kContribution || kind == DatagramKind::kResult;
}
constexpr bool IsAnnouncement(DatagramKind kind) {
  return kind == DatagramKind::kAnnouncement || kind == DatagramKind::kWaiting ||
         kind == DatagramKind::kGaveUp || kind == DatagramKind::kDraining ||
         kind == DatagramKind::kReturned;
}

// Flag of kProbe.
// Chosen: bit 0; zeros fill the datagram up to a length whose passage the sender tests.
inline constexpr std::uint8_t kFlagPadded = 1;
// Flag of kAnnouncement.
// Chosen: bit 0; the sender sends nothing more of this call.
inline constexpr std::uint8_t kFlagPast = 1;
// Flag of kGaveUp.
// Chosen: bit 0; the error is that the ranks make different calls.
inline constexpr std::uint8_t kFlagDisagreed = 1;
// Chosen: bits 1 to 3; the Cause of the error.
inline constexpr int kCauseShift = 1;
inline constexpr std::uint8_t kCauseMask = 7;
// Chosen: bit 4; the sender is one of the ranks to blame.
inline constexpr std::uint8_t kFlagSenderToo = 16;
// Flag of kDraining.
// Chosen: bit 0; the sender has begun the drain, under this number.
inline constexpr std::uint8_t kFlagBegun = 1;
// Flag of kReturned.
// Chosen: bit 0; the wait can be so long that the others wait for the sender in vain meanwhile.
inline constexpr std::uint8_t kFlagPatient = 1;
// Flags of a contribution or a result.
// Chosen: bit 0; the payload holds this segment and following ones, each rounded, as many as fill
// it.
inline constexpr std::uint8_t kFlagSeveral = 1;
// Chosen: bit 3; one of the sender's last segments for the receiver in this stage.
inline constexpr std::uint8_t kFlagTail = 8;
// Flag of a result of a collective without deadlines.
// Chosen: bit 1; from the owner of the segment: the receiver forwards it to all other members; from
// another member: it is forwarded.
inline constexpr std::uint8_t kFlagRelayed = 2;
// Flag of a contribution or a result of a collective that drops late data.
// Chosen: bit 2; the sender measures whole calls: data that it loses is retransmitted.
inline constexpr std::uint8_t kFlagMeasures = 4;
// Flags of a contribution or a result of a collective that defers late data.
// Chosen: bit 4; the segment contains data of earlier calls.
inline constexpr std::uint8_t kFlagDeferred = 16;
// Chosen: bit 5; the call drains its collective.
inline constexpr std::uint8_t kFlagDrain = 32;
// Chosen: bit 6; a retransmission, whose sender has therefore been in the call for some time.
inline constexpr std::uint8_t kFlagRetransmission = 64;
// Chosen: bit 7; the calls of the sender do not wait for the receiver, however far it is behind.
inline constexpr std::uint8_t kFlagSuspended = 128;

struct Header {
  DatagramKind kind = DatagramKind::kProbe;
  std::uint8_t flags = 0;
  Rank source;
  std::uint32_t session = 0;
  CallId call;
  SegmentIndex segment;
  std::uint64_t number = 0;
  std::uint16_t contributors = 0;  // ranks in the sum of a result
  // In a contribution that of CallPolicy::SenderInfoFor, in kGaveUp and kMembership a rank.
  std::uint16_t sender_info = 0;

  friend bool operator==(const Header&, const Header&) = default;
};

enum class ParseError : std::uint8_t { kMalformed, kVersion };

struct ParsedHeader {
  std::optional<Header> header;
  ParseError error = ParseError::kMalformed;  // meaningful without a header
};

void EncodeHeader(const Header& header, std::span<std::byte, kHeaderBytes> out);
ParsedHeader ParseHeader(std::span<const std::byte> datagram);

// The numbers that have arrived: `largest`, and of the numbers below it those whose bit is set in
// `bits` (bit i represents largest - 1 - i). The receiver chooses the number of words of bits, of
// which some repeat earlier acknowledgements. Refused numbers among these are set in `refused`
// (bit i represents largest - i): they are not lost, and are retransmitted once the receiver
// accepts them.
//
// `refusals` is state: every acknowledgement lists all of it, so the loss of one costs nothing.
// Chosen: as many words as 480 bytes hold; a receiver may take a thousand datagrams in one turn.
inline constexpr std::size_t kAcknowledgedWordsMax = 60;
struct Acknowledgement {
  std::uint64_t largest = 0;
  Duration delay{};         // time between the arrival of `largest` and the sending of this
  std::uint8_t incast = 0;  // peers that may send to this rank at the same time; 0: unspecified
  std::size_t words = 0;
  std::size_t refused_words = 0;
  std::array<std::uint64_t, kAcknowledgedWordsMax> bits{};
  std::array<std::uint64_t, kAcknowledgedWordsMax> refused{};
  // The first call of each listed collective that is refused for now, as all later ones are.
  std::vector<CallId> refusals;

  bool Contains(std::uint64_t number) const;
  bool Refuses(std::uint64_t number) const;
};

// The payload of an acknowledgement:
//
//   0  u48  largest
//   6  u32  delay, in microseconds
//   10 u8   incast
//   11 u8   words of bits
//   12 u8   words of refused
//   13 u64  bits, then refused; at most kAcknowledgedWordsMax together
//       u32  collective, u32 sequence: a refusal, repeated up to the end
//
// Chosen: the layout above.
inline constexpr std::size_t kAcknowledgementHeadBytes = 6 + 4 + 1 + 1 + 1;
inline constexpr std::size_t kAcknowledgementBytesMax =
    kAcknowledgementHeadBytes + kAcknowledgedWordsMax * 8;

// Writes as many refusals as fit; `out` has at least kAcknowledgementBytesMax. Returns the number
// of bytes written.
std::size_t EncodeAcknowledgement(const Acknowledgement& acknowledgement, std::span<std::byte> out);
std::optional<Acknowledgement> ParseAcknowledgement(std::span<const std::byte> payload);

// Writes the facts about a collective that peers need, with `text` as its description. Name and
// text are cut at the end of the datagram; the facts always fit. Returns the number of bytes
// written.
std::size_t EncodeAnnouncement(const CollectiveSpec& spec, std::string_view text,
                               std::span<std::byte> out);
// Nothing if the description contradicts itself or names a member outside [0, world_size).
std::optional<CollectiveSpec> ParseAnnouncement(std::span<const std::byte> payload,
                                                std::uint16_t world_size);

// FNV-1a over the bytes; equal on every rank.
std::uint64_t HashBytes(std::string_view bytes, std::uint64_t seed = 0);
// The identity of a collective: a hash of all its properties except the description.
CollectiveId IdOf(const CollectiveSpec& spec);
// The identity of the bucket of which the collective is the whole, or the part on its lane: the
// parts of a bucket differ in their elements only. Two buckets whose identities collide change
// members together.
CollectiveId BucketOf(const CollectiveSpec& spec);
// The identity of the collective whichever ranks are its members.
CollectiveId IdWithoutMembers(const CollectiveSpec& spec);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_WIRE_WIRE_H_
