// The datagram: a 28-byte little-endian header, a payload, a 12-byte tag. The one place where bytes
// become meaning; everything after ParseHeader and its siblings may trust what it is given.
//
//   0  u8   version (upper 4 bits), kind (lower 4)
//   1  u8   flags
//   2  u16  source rank
//   4  u32  session
//   8  u32  collective
//   12 u32  sequence
//   16 u32  segment; of an announcement that a call was given up, how many calls before it were
//   20 u48  number: counts the datagrams of one direction; the nonce of the tag
//   26 u16  of a result, how many contributors it has; of a contribution, where late data is
//           carried, for how many sequences before this one its sender has every result of the
//           receiver; where it is dropped, how long a stage takes (CallTiming::SampleFor)
//
// Identity (collective, sequence, segment, source) is in the header, never in the order of arrival.
// The shard is not a field: a segment is counted over the whole bucket. The epoch is part of what
// the session tag and the keys are derived from.

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

// Chosen: grows with every change of the format; ranks of different versions do not talk.
inline constexpr std::uint8_t kWireVersion = 2;
// Chosen: the layout above; with the tag 40 bytes.
inline constexpr std::size_t kHeaderBytes = 28;
// Chosen: what a datagram costs beyond the payload it carries.
inline constexpr std::size_t kOverheadBytes = kHeaderBytes + kTagBytes;
// Chosen: 48 bits of a counter; four years at two million datagrams a second.
inline constexpr std::uint64_t kNumberMax = (std::uint64_t{1} << 48) - 1;

enum class DatagramKind : std::uint8_t {
  kContribution = 1,     // a segment on its way to the owner of its shard
  kResult = 2,           // a reduced segment on its way to everyone
  kAcknowledgement = 3,  // which numbers arrived
  kAnnouncement = 4,     // what a collective is; what a rank waits in
  kProbe = 5,            // asks for an acknowledgement
  kLeave = 6,            // the sender will call nothing more
  kMembership = 7,       // who is a member (membership_message.h); not acknowledged
};

// Flags of an announcement.
// Chosen: bit 0; the sender's program waits in this call.
inline constexpr std::uint8_t kFlagWaiting = 1;
// Chosen: bit 1; the sender has ended this call with an error, which stands for the description.
inline constexpr std::uint8_t kFlagGaveUp = 2;
// Chosen: bit 2; with kFlagGaveUp: the error is that the ranks call different things.
inline constexpr std::uint8_t kFlagDisagreed = 4;
// Flag of a contribution or a result.
// Chosen: bit 3; it is one of the last that the sender has for the receiver in this stage.
inline constexpr std::uint8_t kFlagTail = 8;
// Flags of a contribution or a result where late data is deferred.
// Chosen: bit 4; it holds data of earlier calls.
inline constexpr std::uint8_t kFlagDeferred = 16;
// Chosen: bit 5; the call drains its collective.
inline constexpr std::uint8_t kFlagDrain = 32;
// Chosen: bit 6; it was sent before, so that its sender has been in the call for some time.
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
  std::uint16_t contributors = 0;  // of a result: how many ranks are in the sum; see above

  friend bool operator==(const Header&, const Header&) = default;
};

enum class ParseError : std::uint8_t { kMalformed, kVersion };

struct ParsedHeader {
  std::optional<Header> header;
  ParseError error = ParseError::kMalformed;  // meaningful without a header
};

void EncodeHeader(const Header& header, std::span<std::byte, kHeaderBytes> out);
ParsedHeader ParseHeader(std::span<const std::byte> datagram);

// Which numbers have arrived: `largest`, and of the numbers below it those whose bit is set in
// `bits` (bit i stands for largest - 1 - i). As many words of bits as the receiver finds worth
// repeating. Of these, the ones that the receiver has refused are set in `refused` (bit i stands
// for largest - i): they are not lost, and come again when the receiver takes them.
//
// `refusals` is state: every acknowledgement lists all of it, so that a lost one costs nothing.
// Chosen: what 480 bytes hold; one turn of a receiver may take in a thousand datagrams.
inline constexpr std::size_t kAcknowledgedWordsMax = 60;
struct Acknowledgement {
  std::uint64_t largest = 0;
  Duration delay{};         // between the arrival of `largest` and the sending of this
  std::uint8_t incast = 0;  // how many may send to this rank at the same time; 0: it does not say
  std::size_t words = 0;
  std::size_t refused_words = 0;
  std::array<std::uint64_t, kAcknowledgedWordsMax> bits{};
  std::array<std::uint64_t, kAcknowledgedWordsMax> refused{};
  // Of each collective here, calls from this one on are not taken for now.
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
//      u32  collective, u32 sequence: a refusal, up to the end
//
// Chosen: the layout above.
inline constexpr std::size_t kAcknowledgementHeadBytes = 6 + 4 + 1 + 1 + 1;
inline constexpr std::size_t kAcknowledgementBytesMax =
    kAcknowledgementHeadBytes + kAcknowledgedWordsMax * 8;

// Writes as many refusals as there is room for; `out` has at least kAcknowledgementBytesMax.
// Returns the bytes written.
std::size_t EncodeAcknowledgement(const Acknowledgement& acknowledgement, std::span<std::byte> out);
std::optional<Acknowledgement> ParseAcknowledgement(std::span<const std::byte> payload);

// Writes what peers must know of a collective; `text` stands for its description. Name and text are
// cut where the datagram ends, which never cuts the facts. Returns the bytes written.
std::size_t EncodeAnnouncement(const CollectiveSpec& spec, std::string_view text,
                               std::span<std::byte> out);
// Nothing when it is inconsistent in itself or names a member outside [0, world_size).
std::optional<CollectiveSpec> ParseAnnouncement(std::span<const std::byte> payload,
                                                std::uint16_t world_size);

// FNV-1a over the bytes; the same on every rank.
std::uint64_t HashBytes(std::string_view bytes, std::uint64_t seed = 0);
// The identity of a collective: a hash of everything in it but the description.
CollectiveId IdOf(const CollectiveSpec& spec);
// That of the bucket which the collective is, or carries a part of on its lane: all parts of one
// differ in nothing but their elements. Two buckets with the same one by chance change members
// together.
CollectiveId BucketOf(const CollectiveSpec& spec);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_WIRE_WIRE_H_
