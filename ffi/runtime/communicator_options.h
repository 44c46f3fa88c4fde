// The settings of a communicator, and those of each of its lanes.

#ifndef FFI_RUNTIME_COMMUNICATOR_OPTIONS_H_
#define FFI_RUNTIME_COMMUNICATOR_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/net/fault_port.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Share of the data that may miss a learned deadline. Chosen: of the shares in docs/figures.md the
// largest that costs less than a point of accuracy.
inline constexpr double kLateBudget = 0.1;

// The settings of its endpoints, and its own. The program gives values that it has checked
// (jax_optireduce/_session/options.py); connecting adds the facts that the ranks exchange.
struct CommunicatorOptions : EndpointOptions {
  CommunicatorOptions() { late_budget = kLateBudget; }

  std::string name;
  std::string bind_address;  // IPv4 or IPv6; its family decides that of the session
  // The first and the last port that a lane may take; 0: the kernel chooses.
  std::pair<std::uint16_t, std::uint16_t> ports{};
  Duration deadline{};       // both stages together, of a call that does not wait; 0: learned
  Duration deadline_max{};   // longest learned deadline
  Duration stall_timeout{};  // age at which a call is reported; 0: never
  std::optional<Faults> faults;
};

// Calls `visit(name, setting)` for each setting that the program gives, by its name there.
template <typename Visit>
void ForEachSetting(CommunicatorOptions& options, Visit visit) {
  visit("name", options.name);
  visit("rank", options.rank);
  visit("world_size", options.world_size);
  visit("processes_per_slice", options.ranks_per_slice);
  visit("secret", options.secret);
  visit("security", options.protection);
  visit("bind_address", options.bind_address);
  visit("ports", options.ports);
  visit("lanes", options.lanes);
  visit("receive_buffer_bytes", options.receive_buffer_bytes);
  visit("max_lag", options.max_lag);
  visit("peer_timeout_s", options.peer_timeout);
  visit("mismatch_timeout_s", options.mismatch_timeout);
  visit("call_timeout_s", options.call_timeout);
  visit("deadline_s", options.deadline);
  visit("deadline_max_s", options.deadline_max);
  visit("stall_timeout_s", options.stall_timeout);
  visit("faults", options.faults);
}

// Address of a rank and the ports of its lanes.
struct RankAddress {
  std::string address;
  std::vector<std::uint16_t> ports;  // one for each lane; none: the rank is absent
};

std::vector<Rank> AbsentOf(const std::vector<RankAddress>& ranks);

// Identifies the session, equally on all ranks.
Result<std::uint32_t> SessionTag(const Secret& secret);

// The options of the endpoint of a lane.
EndpointOptions EndpointOptionsOf(const CommunicatorOptions& options, std::uint16_t lane,
                                  const std::vector<RankAddress>& ranks,
                                  std::size_t datagram_bytes_max,
                                  std::size_t peer_receive_buffer_bytes);

// The faults of a lane, or none: different ones on every rank and lane, from the one seed.
std::optional<Faults> FaultsOf(const CommunicatorOptions& options, std::uint16_t lane);

// Fills in the deadlines of the stages of a call.
void SetDeadlines(const CommunicatorOptions& options, CollectiveSpec& spec);

}  // namespace optireduce

#endif  // FFI_RUNTIME_COMMUNICATOR_OPTIONS_H_
