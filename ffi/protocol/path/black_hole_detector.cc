#include "ffi/protocol/path/black_hole_detector.h"

#include <algorithm>
#include <utility>

namespace optireduce {
namespace {

// Source: RFC 791 requires every host to accept 576 bytes; less 28 for IPv4 and UDP. Shorter
// datagrams are not lost for their length.
constexpr std::size_t kEveryPathBytes = 548;
// Losses from which a path counts as a black hole. Chosen: at 40 % random loss a run of this length
// has a probability of 10^-12.
constexpr std::uint32_t kBlackHoleLosses = 32;

}  // namespace

void BlackHoleDetector::Losses::Add(Instant now, std::size_t length) {
  // Restarts the minimum: the longest datagrams may be of a call that has ended, and not recur.
  if (count == 0) *this = {.bytes = length, .first = now};
  bytes = std::min(bytes, length);
  ++count;
  last = now;
}

void BlackHoleDetector::Losses::Deliver(std::size_t length) {
  if (length >= bytes) {
    *this = {};
  } else {
    delivered_bytes = std::max(delivered_bytes, length);
  }
}

bool BlackHoleDetector::Losses::certain() const {
  return count >= kBlackHoleLosses && delivered_bytes > 0;
}

void BlackHoleDetector::Lost(Instant now, std::size_t bytes) {
  if (bytes <= kEveryPathBytes) return;
  if (bytes > losses_.delivered_bytes) return losses_.Add(now, bytes);
  if (bytes > narrower_.delivered_bytes) narrower_.Add(now, bytes);
  if (narrower_.certain()) losses_ = std::exchange(narrower_, {});
}

void BlackHoleDetector::Delivered(std::size_t bytes) {
  losses_.Deliver(bytes);
  narrower_.Deliver(bytes);
  if (losses_.count == 0) trials_ = 0;
}

void BlackHoleDetector::Sent(Instant now, std::size_t bytes, Duration interval) {
  if (!losses_.certain() || bytes < losses_.bytes) return;
  ++trials_;
  trial_at_ = now + interval;
}

bool BlackHoleDetector::Blocks(Instant now, std::size_t bytes) {
  const bool blocks = losses_.certain() && bytes >= losses_.bytes && now < trial_at_;
  blocked_ = blocked_ || blocks;
  return blocks;
}

std::optional<BlackHole> BlackHoleDetector::Find(Duration patience) const {
  if (!losses_.certain() || losses_.last - losses_.first < patience) return std::nullopt;
  // Lengths lost since their last delivery may have stopped passing.
  const Losses& latest = narrower_.count > 0 ? narrower_ : losses_;
  if (latest.delivered_bytes == 0) return std::nullopt;
  return BlackHole{.lost_bytes = losses_.bytes, .delivered_bytes = latest.delivered_bytes};
}

}  // namespace optireduce
