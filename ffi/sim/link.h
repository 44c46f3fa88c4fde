// A link with a queue in front of it: bytes take time to leave, and a full queue drops
// datagrams. The output port of a switch is the same.

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
  // Of waiting datagrams, including the one under way.
  std::size_t queue_bytes_max = std::size_t{1} << 20;
};

class Link {
 public:
  explicit Link(const LinkOptions& options);

  // When the last byte arrives at the far end; nothing when the queue has no room for it.
  std::optional<Instant> Offer(Instant now, std::size_t bytes);

  // Whether Offer would take it. A datagram that is larger than the whole queue fits an empty one.
  bool HasRoom(Instant now, std::size_t bytes) const;

  // When a datagram of this size will fit if nothing else is offered.
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
