// One scenario in virtual time: the production endpoints, driven by their five calls as the
// contract in protocol/endpoint.h demands, on a simulated network, observed by the checker.

#ifndef FFI_SIM_SIMULATE_H_
#define FFI_SIM_SIMULATE_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "ffi/base/time.h"
#include "ffi/protocol/stats.h"
#include "ffi/sim/call_times.h"
#include "ffi/sim/network.h"
#include "ffi/sim/scenario.h"

namespace optireduce {

struct SimulationReport {
  std::string failure;        // empty if all checks held
  std::uint64_t hash = 0;     // hash of every event: equal for equal scenarios
  std::uint64_t events = 0;   // number of events, in the network and at the ranks
  Duration virtual_time{};    // time of the last event
  Duration calls_time{};      // time of the end of the last call
  Duration liveness_worst{};  // longest duration of an exact call after the end of all faults
  // Shares of the down-link with cross traffic, while it lasts: of that traffic and of the session.
  double cross_traffic_part = 0;
  double own_part = 0;
  // Maximum that a rank held for calls at one time.
  std::size_t memory_peak_bytes = 0;
  // One for each number; the last one is a drain if late data is deferred.
  std::vector<CallReport> calls;
  Counters counters;  // summed over the ranks
  NetworkFaults faults;

  bool ok() const { return failure.empty(); }
};

// Never throws: a broken invariant is reported as a failure. Every event is a line in `trace`,
// unless that is null.
SimulationReport Simulate(const Scenario& scenario, std::ostream* trace = nullptr);

}  // namespace optireduce

#endif  // FFI_SIM_SIMULATE_H_
