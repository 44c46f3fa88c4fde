// A link behind a queue: bytes take time to leave, and a full queue drops datagrams. Also models
// the output port of a switch.

#ifndef FFI_SIM_LINK_H_
#define FFI_SIM_LINK_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ffi/base/time.h"

namespace optireduce {

struct LinkOptions {
  std::uint64_t rate_mbps = 1000;  // 10^6 bits per second; at most 8'000'000
  Duration propagation{};
  // Size of the waiting datagrams, including the one in transmission.
  std::size_t queue_bytes_max = std::size_t{1} << 20;
};

class Link {
 public:
  explicit Link(const LinkOptions& options);

  // Arrival time of the last byte at the far end; nothing if the queue has no room.
  std::optional<Instant> Offer(Instant now, std::size_t bytes);

  // True if Offer would accept the bytes. A datagram larger than the whole queue fits an empty one.
  bool HasRoom(Instant now, std::size_t bytes) const;

  // Time at which a datagram of this size fits if no other is offered.
  Instant RoomAt(Instant now, std::size_t bytes) const;

  // No datagram leaves before `until`; waiting ones keep their order.
  void Stall(Instant until);

  std::size_t queued_bytes(Instant now) const;

  std::uint64_t offered() const { return offered_; }
  std::uint64_t carried() const { return offered_ - dropped_; }
  std::uint64_t dropped() const { return dropped_; }

 private:
  LinkOptions options_;
  // Picoseconds: at 100 Gbit/s a byte takes 80 of them, so that sums of integers stay exact.
  std::uint64_t byte_ps_;
  std::uint64_t busy_until_ps_ = 0;
  std::uint64_t offered_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace optireduce

#endif  // FFI_SIM_LINK_H_
