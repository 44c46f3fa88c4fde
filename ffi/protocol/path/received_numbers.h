// The numbers of the datagrams that have arrived from one peer, and their acknowledgement.
//
// Every authenticated datagram is recorded once, whatever its use. A refused one is acknowledged as
// refused: it is not lost, and an immediate retransmission would be refused again.

#ifndef FFI_PROTOCOL_PATH_RECEIVED_NUMBERS_H_
#define FFI_PROTOCOL_PATH_RECEIVED_NUMBERS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ffi/base/time.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

// Acknowledgement of a received datagram: with others, or immediately.
enum class Acknowledge { kNot, kSoon, kAtOnce };

class ReceivedNumbers {
 public:
  // Longest delay of an acknowledgement. Chosen: long enough to cover a batch, short against a
  // probe interval.
  static constexpr Duration kDelayMax = std::chrono::microseconds(500);

  // `window_datagrams`: how many datagrams of `datagram_bytes` the peer may have under way.
  ReceivedNumbers(std::size_t window_datagrams, std::size_t datagram_bytes);

  // True if the number was received before, or is too old to decide.
  bool Contains(std::uint64_t number) const;
  // Records a received datagram, once. `refused`: the datagram has no effect, and may be sent again
  // under another number.
  void Record(Instant now, std::uint64_t number, Acknowledge acknowledge, bool refused);
  // Numbers that the peer has used, as far as known, and the count of recorded ones.
  std::uint64_t expected() const { return largest_ ? *largest_ + 1 : 0; }
  std::uint64_t recorded() const { return recorded_; }

  // Makes an acknowledgement of the recorded numbers due now; at least one of them must want one.
  void AcknowledgeAtOnce(Instant now) { acknowledge_at_ = std::min(acknowledge_at_, now); }
  bool AcknowledgementDue(Instant now) const;
  Acknowledgement MakeAcknowledgement(Instant now);
  // How many datagrams that want an acknowledgement have one at once.
  std::size_t acknowledge_every() const { return acknowledge_every_; }
  // Time at which an acknowledgement is due.
  Instant timeout() const { return acknowledge_at_; }

 private:
  // Chosen: twice the datagrams that a peer may have under way, so that none that is on time counts
  // as too old.
  static constexpr std::size_t kBits = 4096;
  using NumberBits = std::array<std::uint64_t, kBits / 64>;  // bit of number n: n % kBits
  static bool Bit(const NumberBits& bits, std::uint64_t number) {
    return (bits[number % kBits / 64] >> (number % 64)) & 1;
  }
  static void SetBit(NumberBits& bits, std::uint64_t number) {
    bits[number % kBits / 64] |= std::uint64_t{1} << (number % 64);
  }

  void ClearBitsUpTo(std::uint64_t number);

  NumberBits seen_{};
  NumberBits refused_{};  // refused numbers among the seen ones
  std::optional<std::uint64_t> largest_;
  std::optional<std::uint64_t> largest_refused_;
  std::uint64_t recorded_ = 0;
  std::optional<std::uint64_t> largest_wanted_;  // the largest number that wants an acknowledgement
  Instant largest_wanted_at_{};
  std::uint64_t last_acknowledged_ = 0;  // `largest` of the last acknowledgement
  std::size_t acknowledge_every_;
  std::size_t unacknowledged_ = 0;
  Instant acknowledge_at_ = kNever;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_RECEIVED_NUMBERS_H_
