// A scenario made into what it describes: a network and endpoints.

#ifndef FFI_SIM_SETUP_H_
#define FFI_SIM_SETUP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/sim/network.h"
#include "ffi/sim/scenario.h"

namespace optireduce {

constexpr Duration Microseconds(std::uint64_t value) {
  return std::chrono::microseconds(static_cast<std::int64_t>(value));
}

NetworkOptions NetworkOf(const Scenario& scenario);

// By when nothing may be pending any more, and how many events that may take; calls that wait may
// take longer by their own bound.
Duration TimeMax(const Scenario& scenario, std::size_t collectives);
std::uint64_t EventsMax(const Scenario& scenario);

std::unique_ptr<Endpoint> MakeEndpoint(const Scenario& scenario, Rank rank);

// What another job on the same hosts sends, and what somebody sends who has seen the session's tag
// but does not have its secret. Empty where the scenario injects none.
std::vector<std::vector<std::byte>> ForeignDatagrams(const Scenario& scenario);

}  // namespace optireduce

#endif  // FFI_SIM_SETUP_H_
