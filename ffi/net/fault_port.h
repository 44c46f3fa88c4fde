// A DatagramPort that injects faults into outgoing datagrams, for tests on real sockets: without
// root or a special network, and reproducible by seed. It can also fall silent for good, in both
// directions.
//
// The seed decides the fault of the first, second, third... outgoing datagram, for any destination.
// (Which datagrams overtake a delayed one depends on the traffic, and on time.)
//
// Owned by the thread that calls Wait(); other threads may call Wake() only. Held-back datagrams
// leave inside a later Send, Receive or Wait.

#ifndef FFI_NET_FAULT_PORT_H_
#define FFI_NET_FAULT_PORT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/prng.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/net/datagram_port.h"

namespace optireduce {

// Frequency of each fault, in parts per million of the datagrams. Faults are independent: one
// datagram may have several.
struct Faults {
  std::uint32_t loss_ppm = 0;
  std::uint32_t duplicate_ppm = 0;
  std::uint32_t reorder_ppm = 0;   // held back until others have overtaken it
  std::uint32_t corrupt_ppm = 0;   // one bit flipped
  std::uint32_t truncate_ppm = 0;  // the end missing; at least one byte is left
  Duration delay{};                // delay of every datagram
  // Time from the creation of the port after which no datagram passes; 0: never.
  Duration silent_after{};
  std::optional<std::uint16_t> lane{};  // the only lane with faults; none: all lanes have them
  std::uint64_t seed = 0;

  // Parses a user's option: `loss`, `duplicate`, `reorder`, `corrupt`, `truncate` as fractions in
  // [0, 1], `delay_s` and `silent_after_s` in seconds, `lane` and `seed` as whole numbers. The
  // default of each is 0; without `lane` all lanes have the faults.
  static Result<Faults> FromMap(const std::map<std::string, double>& settings);
};

// Numbers of datagrams so far.
struct FaultCounters {
  std::uint64_t offered = 0;  // given to Send and accepted
  std::uint64_t lost = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t corrupted = 0;
  std::uint64_t truncated = 0;
};

class FaultPort : public DatagramPort {
 public:
  FaultPort(std::unique_ptr<DatagramPort> port, const Faults& faults);

  const FaultCounters& counters() const { return counters_; }

  bool Send(Rank to, Pieces pieces, std::size_t datagram_bytes) override;
  std::size_t Receive(const std::function<void(std::span<const std::byte>)>& take) override;
  void Wait(Instant until) override;
  void Wake() override { port_->Wake(); }
  std::size_t batch_max() const override { return port_->batch_max(); }
  std::uint64_t socket_drops() const override { return port_->socket_drops(); }
  SendErrors send_errors() const override { return port_->send_errors(); }

 private:
  struct Held {
    Rank to;
    Instant leaves_at{};
    // Datagrams that must still overtake this one before it leaves ahead of `leaves_at`.
    std::uint64_t overtakers = 0;
    std::vector<std::byte> bytes;
  };

  void Offer(Rank to, std::span<const std::byte> datagram, Instant now);
  void Enqueue(Held datagram, Instant now);
  bool Silent(Instant now) const { return now >= silent_at_; }
  // Sends the datagrams that are due. False if the port below accepts no more.
  bool Flush(Instant now);
  // Moves datagrams that were overtaken often enough, or held long enough, back into the queue.
  void ReleaseOvertaken(Instant now);

  const std::unique_ptr<DatagramPort> port_;
  const Faults faults_;
  const Instant silent_at_;
  Prng prng_;
  FaultCounters counters_;
  std::vector<std::byte> offered_;  // the datagrams of the last Send
  std::deque<Held> queue_;          // the next to leave first
  std::vector<Held> held_back_;     // waiting to be overtaken
};

}  // namespace optireduce

#endif  // FFI_NET_FAULT_PORT_H_
