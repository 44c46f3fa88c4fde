// The settings of an endpoint, each with its unit and the origin of its default. The program
// has checked them (jax_optireduce/_session/options.py); the protocol trusts them.

#ifndef FFI_PROTOCOL_OPTIONS_H_
#define FFI_PROTOCOL_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/crypto/seal.h"

namespace optireduce {

// With at least so many ranks, calls that defer late data go on without a peer that is more than
// max_lag calls behind, and the peer catches up (lifecycle/catch_up.h). With fewer they wait for it
// for up to `peer_timeout`. Chosen: of two ranks the one that goes on would be alone.
inline constexpr std::uint16_t kCatchUpWorldSizeMin = 3;
constexpr bool CatchesUp(std::uint64_t world_size) { return world_size >= kCatchUpWorldSizeMin; }

struct EndpointOptions {
  Rank rank;
  std::uint16_t world_size = 1;

  // Separates sessions: a datagram with another tag is rejected. Derived from the secret.
  std::uint32_t session = 0;
  Secret secret{};
  Protection protection = Protection::kAuthenticate;
  // Lanes of every rank. Each has an endpoint and keys of its own; `lane` is that of this one.
  std::uint16_t lanes = 1;
  std::uint16_t lane = 0;

  // Largest UDP payload that crosses every path of the session unfragmented, header and tag
  // included. Chosen: 1500 (Ethernet) - 20 (IPv4) - 8 (UDP); the communicator measures the path
  // instead.
  std::size_t datagram_bytes_max = 1472;

  // Silence of a peer after which a call that waits for it fails.
  // Chosen: longer than the pause of a virtual machine.
  Duration peer_timeout = std::chrono::seconds(30);

  // Time for which two ranks may wait for each other in different calls before both fail.
  // Chosen: longer than the gap when two ranks start independent calls in a different order.
  Duration mismatch_timeout = std::chrono::seconds(10);

  // Duration after which a waiting call fails although all peers answer; 0: unlimited. Source: the
  // default of torch.distributed for Gloo; evaluation and compilation on one rank take less.
  Duration call_timeout = std::chrono::minutes(30);

  // Senders that serve one receiver at the same time (I of the paper); 0: as the receivers
  // advertise where lost data is dropped, else all.
  std::uint16_t incast = 0;

  // Least bytes of a shard where a bucket has fewer owners than members; the same on all ranks.
  // Chosen: see docs/decisions/0043.
  std::size_t shard_bytes_min = 1024;

  // Segments of a bucket from which on a rank whose program is late has its sums relayed
  // (call/relayed_sums.h). Chosen: with fewer the additional hop takes about the saved time.
  std::uint32_t relay_segments_min = 256;

  // Consecutive ranks that are members together (membership/slices.h); a divisor of the world size.
  std::uint16_t ranks_per_slice = 1;

  // Ranks that are no members from the start, as if they had been removed: a session of three ranks
  // or more in which some places are empty.
  std::vector<Rank> absent;

  // Bytes that all peers together may have under way to one rank: the size of its socket buffer.
  std::size_t receive_buffer_bytes = 2u << 20;
  // Which ranks run on this rank's host, without a network between. Empty: none does.
  std::vector<bool> same_host;

  // Calls of one collective that a rank may be behind another before the other waits for it, or
  // goes on without it. Chosen: no wait for a rank that has missed one call; each further call
  // costs the memory of a bucket (docs/guarantees.md).
  std::uint32_t max_lag = 2;
  // Calls never wait for a peer that is behind.
  bool catches_up() const { return CatchesUp(world_size); }

  // Share of the data that may miss a learned deadline; 0: the deadlines are those of the calls.
  double late_budget = 0;

  // Memory for calls that this rank's program has not made yet.
  // Chosen: several hundred buckets of 25 MB among 4 ranks.
  std::size_t early_bytes_max = std::size_t{4} << 30;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_OPTIONS_H_
