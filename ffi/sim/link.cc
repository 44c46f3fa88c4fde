#include "ffi/sim/link.h"

#include <algorithm>

#include "ffi/base/check.h"

namespace optireduce {
namespace {

constexpr std::uint64_t kPsPerNs = 1000;
// A byte at 1 Mbit/s takes 8 microseconds.
constexpr std::uint64_t kBytePsAtOneMbps = 8'000'000;

std::uint64_t Picoseconds(Instant at) {
  return static_cast<std::uint64_t>(at.time_since_epoch().count()) * kPsPerNs;
}

Instant RoundUp(std::uint64_t ps) {
  return Instant(Duration(static_cast<Duration::rep>((ps + kPsPerNs - 1) / kPsPerNs)));
}

}  // namespace

Link::Link(const LinkOptions& options)
    : options_(options), byte_ps_(kBytePsAtOneMbps / options.rate_mbps) {
  OR_CHECK(options.rate_mbps >= 1 && options.rate_mbps <= kBytePsAtOneMbps);
}

std::size_t Link::queued_bytes(Instant now) const {
  // The rate is constant, so the drain time gives the length of the queue without an event per
  // byte.
  return busy_until_ps_ <= Picoseconds(now) ? 0 : (busy_until_ps_ - Picoseconds(now)) / byte_ps_;
}

bool Link::HasRoom(Instant now, std::size_t bytes) const {
  const std::size_t queued = queued_bytes(now);
  return queued == 0 || queued + bytes <= options_.queue_bytes_max;
}

Instant Link::RoomAt(Instant now, std::size_t bytes) const {
  if (HasRoom(now, bytes)) return now;
  const std::size_t beside = options_.queue_bytes_max - std::min(bytes, options_.queue_bytes_max);
  return RoundUp(busy_until_ps_ - beside * byte_ps_);
}

std::optional<Instant> Link::Offer(Instant now, std::size_t bytes) {
  ++offered_;
  if (!HasRoom(now, bytes)) {
    ++dropped_;
    return std::nullopt;
  }
  busy_until_ps_ = std::max(busy_until_ps_, Picoseconds(now)) + bytes * byte_ps_;
  return RoundUp(busy_until_ps_) + options_.propagation;
}

void Link::Stall(Instant until) { busy_until_ps_ = std::max(busy_until_ps_, Picoseconds(until)); }

}  // namespace optireduce
