// What can be set for an endpoint, each with its unit and where the default comes from. Filled and
// validated by the communicator; the protocol trusts it.

#ifndef FFI_PROTOCOL_OPTIONS_H_
#define FFI_PROTOCOL_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/crypto/seal.h"

namespace optireduce {

class SharedMembership;

struct EndpointOptions {
  Rank rank;
  std::uint16_t world_size = 1;

  // Separates sessions: a datagram with another tag is foreign. Derived from the secret.
  std::uint32_t session = 0;
  Secret secret{};
  Protection protection = Protection::kAuthenticate;
  // Lanes are endpoints of their own; each has its own keys.
  std::uint16_t lane = 0;
  // With several lanes: what those of this rank share. Empty: this is the only one.
  std::shared_ptr<SharedMembership> membership;

  // Largest UDP payload that crosses every path of the session in one piece, header and tag
  // included. Chosen: 1500 (Ethernet) - 20 (IPv4) - 8 (UDP); the communicator measures the path
  // instead.
  std::size_t datagram_bytes_max = 1472;

  // How long a peer may be silent before a call that waits for it fails.
  // Source: design of the modes; long enough for a paused virtual machine.
  Duration peer_timeout = std::chrono::seconds(30);

  // How long two ranks may wait for each other in different calls before both fail.
  // Chosen: longer than two ranks take to start independent calls in different order.
  Duration mismatch_timeout = std::chrono::seconds(10);

  // How long a call that waits is under way before it fails, although all peers answer; 0: for
  // ever. Source: the default of torch.distributed for Gloo; evaluation and compilation on one rank
  // take less.
  Duration call_timeout = std::chrono::minutes(30);

  // Senders that serve one receiver at the same time (I of the paper); 0 means what the receivers
  // advertise.
  std::uint16_t incast = 0;

  // Bytes that all peers together may have under way to one rank: what its socket buffer holds.
  std::size_t receive_buffer_bytes = 2u << 20;
  // By rank: it runs on this rank's host, so that no network lies between. Empty: none does.
  std::vector<bool> same_host;

  // Calls of one collective that a rank may be behind another before the other waits for it, or
  // suspends it. Chosen: a rank that has missed one call is not waited for; each call more costs
  // the memory of a bucket (docs/guarantees.md).
  std::uint32_t max_lag = 2;
  // Where late data is deferred: never wait for a peer that is further behind. Otherwise it is
  // waited for as long as `peer_timeout`.
  bool suspend_on_lag = false;

  // Share of the data that may miss a deadline that is learned; 0: deadlines are those of the
  // calls.
  double late_budget = 0;

  // Memory for calls that this rank's program has not reached yet.
  // Chosen: several hundred buckets of 25 MB among 4 ranks.
  std::size_t early_bytes_max = std::size_t{4} << 30;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_OPTIONS_H_
