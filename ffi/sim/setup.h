// Makes the network and the endpoints of a scenario.

#ifndef FFI_SIM_SETUP_H_
#define FFI_SIM_SETUP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/sim/network.h"
#include "ffi/sim/scenario.h"

namespace optireduce {

// Each lane of a rank is a node of the network, with links of its own: lane 0 of every rank, then
// lane 1 of every rank, and so on.
inline Rank NodeOf(const Scenario& scenario, Rank rank, std::uint64_t lane) {
  return Rank(static_cast<std::uint16_t>(lane * scenario.ranks + rank.value()));
}
inline Rank RankOf(const Scenario& scenario, Rank node) {
  return Rank(static_cast<std::uint16_t>(node.value() % scenario.ranks));
}
inline std::uint16_t LaneOf(const Scenario& scenario, Rank node) {
  return static_cast<std::uint16_t>(node.value() / scenario.ranks);
}

NetworkOptions NetworkOf(const Scenario& scenario);

// Limits of the virtual time and the number of events after which no event may be pending; waiting
// calls may take longer by their own bound.
Duration TimeMax(const Scenario& scenario, std::size_t collectives);
std::uint64_t EventsMax(const Scenario& scenario);

// Time at which a program of the rank that hangs now continues.
std::optional<Instant> HangsUntil(const Scenario& scenario, Instant now, Rank rank);

// Makes the endpoints of all lanes of a rank.
std::vector<std::unique_ptr<Endpoint>> MakeEndpoints(const Scenario& scenario, Rank rank);

// Datagrams of another job on the same hosts, and of an attacker that knows the session's tag but
// not its secret. Empty if the scenario injects none.
std::vector<std::vector<std::byte>> ForeignDatagrams(const Scenario& scenario);

}  // namespace optireduce

#endif  // FFI_SIM_SETUP_H_
