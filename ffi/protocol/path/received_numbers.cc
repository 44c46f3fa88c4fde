#include "ffi/protocol/path/received_numbers.h"

#include <algorithm>

#include "ffi/base/check.h"

namespace optireduce {
namespace {

// Chosen: one acknowledgement for sixteen datagrams costs 0.7 % of the wire at 1,472 bytes, one for
// eight twice that.
constexpr std::size_t kAcknowledgeEveryMax = 16;
// Windows of few datagrams. Chosen: as many as a window keeps, see CongestionController.
constexpr std::size_t kAcknowledgeEveryMin = 8;
// Chosen: four acknowledgements per window, so that the released datagrams leave evenly.
constexpr std::size_t kAcknowledgementsOfWindow = 4;
// Longer datagrams: an acknowledgement for as many bytes as sixteen of 1,472 have, and for two
// datagrams at least. Chosen: sixteen of 8,972 bytes are more than many windows, so the sender
// asked for each acknowledgement by a probe.
constexpr std::size_t kAcknowledgeBytes = 24 * 1024;
constexpr std::size_t kAcknowledgeLongEveryMin = 2;
// Chosen: some thirty consecutive acknowledgements may be lost before a delivered datagram is
// declared lost.
constexpr std::uint64_t kRepeatedNumbers = 256;
// With refused numbers there are two bits for each number. Chosen: half of the words, and one for
// the largest itself.
constexpr std::uint64_t kNumbersWithRefused = (kAcknowledgedWordsMax - 1) / 2 * 64;

std::size_t AcknowledgeEvery(std::size_t window_datagrams, std::size_t datagram_bytes) {
  // A smaller window, between processes of one host, is acknowledged twice.
  const std::size_t least = window_datagrams < kAcknowledgeEveryMin
                                ? std::max<std::size_t>(window_datagrams / 2, 1)
                                : kAcknowledgeEveryMin;
  const std::size_t most = std::max(kAcknowledgeBytes / datagram_bytes, kAcknowledgeLongEveryMin);
  return std::min(
      std::clamp(window_datagrams / kAcknowledgementsOfWindow, least, kAcknowledgeEveryMax), most);
}

}  // namespace

ReceivedNumbers::ReceivedNumbers(std::size_t window_datagrams, std::size_t datagram_bytes)
    : acknowledge_every_(AcknowledgeEvery(window_datagrams, datagram_bytes)) {}

bool ReceivedNumbers::Contains(std::uint64_t number) const {
  if (!largest_ || number > *largest_) return false;
  if (*largest_ - number >= kBits) return true;
  return Bit(seen_, number);
}

// The numbers between the largest one and this one have not arrived.
void ReceivedNumbers::ClearBitsUpTo(std::uint64_t number) {
  const std::uint64_t first = expected();
  if (number - first >= kBits) {
    seen_.fill(0);
    refused_.fill(0);
    return;
  }
  for (std::uint64_t n = first; n <= number; ++n) {
    const std::uint64_t others = ~(std::uint64_t{1} << (n % 64));
    seen_[n % kBits / 64] &= others;
    refused_[n % kBits / 64] &= others;
  }
}

void ReceivedNumbers::Record(Instant now, std::uint64_t number, Acknowledge acknowledge,
                             bool refused) {
  OR_CHECK(!Contains(number));
  if (!largest_ || number > *largest_) {
    ClearBitsUpTo(number);
    largest_ = number;
  }
  SetBit(seen_, number);
  if (refused) {
    SetBit(refused_, number);
    largest_refused_ = std::max(largest_refused_.value_or(0), number);
  }
  ++recorded_;
  if (acknowledge == Acknowledge::kNot) return;
  if (!largest_wanted_ || number > *largest_wanted_) {
    largest_wanted_ = number;
    largest_wanted_at_ = now;
  }
  ++unacknowledged_;
  const Duration delay = acknowledge == Acknowledge::kAtOnce ? Duration::zero() : kDelayMax;
  acknowledge_at_ = std::min(acknowledge_at_, now + delay);
}

bool ReceivedNumbers::AcknowledgementDue(Instant now) const {
  return unacknowledged_ >= acknowledge_every_ || now >= acknowledge_at_;
}

Acknowledgement ReceivedNumbers::MakeAcknowledgement(Instant now) {
  OR_CHECK(largest_wanted_.has_value());
  unacknowledged_ = 0;
  acknowledge_at_ = kNever;
  Acknowledgement acknowledgement;
  acknowledgement.largest = *largest_wanted_;
  acknowledgement.delay = now - largest_wanted_at_;
  // All numbers since the last acknowledgement, and some before it, since that one may be lost.
  const std::uint64_t fresh =
      acknowledgement.largest - std::min(last_acknowledged_, acknowledgement.largest);
  std::uint64_t count =
      std::min({fresh + kRepeatedNumbers, acknowledgement.largest, kAcknowledgedWordsMax * 64});
  if (largest_refused_ && *largest_refused_ + count >= acknowledgement.largest) {
    count = std::min(count, kNumbersWithRefused);
    for (std::uint64_t i = 0; i <= count; ++i) {
      if (!Bit(refused_, acknowledgement.largest - i)) continue;
      acknowledgement.refused[i / 64] |= std::uint64_t{1} << (i % 64);
      acknowledgement.refused_words = i / 64 + 1;
    }
  }
  acknowledgement.words = (count + 63) / 64;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t value = Bit(seen_, acknowledgement.largest - 1 - i);
    acknowledgement.bits[i / 64] |= value << (i % 64);
  }
  last_acknowledged_ = acknowledgement.largest;
  return acknowledgement;
}

}  // namespace optireduce
