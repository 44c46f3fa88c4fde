// The settings of a communicator, and those of each of its lanes.

#ifndef FFI_RUNTIME_COMMUNICATOR_OPTIONS_H_
#define FFI_RUNTIME_COMMUNICATOR_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/crypto/seal.h"
#include "ffi/net/fault_port.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

struct CommunicatorOptions {
  std::string name;
  Rank rank;
  std::uint16_t world_size = 1;
  std::uint16_t ranks_per_slice = 1;
  Secret secret{};
  Protection protection = Protection::kAuthenticate;
  std::string bind_address;      // IPv4 or IPv6; its family decides that of the session
  std::uint16_t port_first = 0;  // the first port of the lanes; 0: the kernel chooses
  std::uint16_t port_last = 0;
  std::uint16_t lanes = 1;
  std::uint16_t incast = 0;  // 0: all peers at once
  std::size_t receive_buffer_bytes = 0;
  std::uint32_t max_lag = 2;
  Duration peer_timeout{};
  Duration mismatch_timeout{};
  Duration call_timeout{};   // longest wait of a call that waits; 0: never
  Duration deadline{};       // both stages together, of a call that does not wait; 0: learned
  double late_budget = 0;    // share of the data that may miss a learned deadline
  Duration deadline_max{};   // longest learned deadline
  Duration stall_timeout{};  // age at which a call is reported; 0: never
  std::optional<Faults> faults;
};

// Address of a rank and the ports of its lanes.
struct RankAddress {
  std::string address;
  std::vector<std::uint16_t> ports;  // one for each lane
};

Status Validate(const CommunicatorOptions& options);

// Identifies the session, equally on all ranks.
Result<std::uint32_t> SessionTag(const Secret& secret);

// The options of a lane without a membership of its own.
Result<EndpointOptions> EndpointOptionsOf(const CommunicatorOptions& options, std::uint16_t lane,
                                          const std::vector<RankAddress>& ranks,
                                          std::size_t datagram_bytes_max,
                                          std::size_t peer_receive_buffer_bytes);

// The faults of a lane, or none: different ones on every rank and lane, from the one seed.
std::optional<Faults> FaultsOf(const CommunicatorOptions& options, std::uint16_t lane);

// Fills in the deadlines of the stages of a call.
void SetDeadlines(const CommunicatorOptions& options, CollectiveSpec& spec);

}  // namespace optireduce

#endif  // FFI_RUNTIME_COMMUNICATOR_OPTIONS_H_
