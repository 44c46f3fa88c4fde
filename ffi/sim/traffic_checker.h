// The counters, memory and bytes of an endpoint, compared with its datagrams and calls.

#ifndef FFI_SIM_TRAFFIC_CHECKER_H_
#define FFI_SIM_TRAFFIC_CHECKER_H_

#include <cstddef>
#include <vector>

#include "ffi/protocol/endpoint.h"
#include "ffi/sim/bounds.h"
#include "ffi/sim/network.h"
#include "ffi/sim/run_log.h"

namespace optireduce {

class TrafficChecker {
 public:
  TrafficChecker(RunLog& log, const Bounds& bounds);

  // Nodes from here on, see setup.h. A node that still listens has received a datagram.
  void Delivered(Instant now, const Arrival& delivery, const Counters& counters);
  // A transmit that the endpoint asked for.
  void Polled(Instant now, Rank node, const Transmit& transmit, std::size_t batch_max);
  // After the node's endpoint was driven.
  void Driven(Instant now, Rank node, const Endpoint& endpoint);
  // A run without faults and delays sends the data once.
  void Finish(Instant now, const Network& network);

 private:
  // The bytes of a collective: its data with headers, and the most of everything else.
  struct Bytes {
    double data = 0;
    double control = 0;
  };
  Bytes BytesOf(const SimCollective& collective) const;
  bool IsClean(const Network& network) const;

  RunLog& log_;
  std::vector<std::size_t> memory_bound_;  // one for each rank
};

}  // namespace optireduce

#endif  // FFI_SIM_TRAFFIC_CHECKER_H_
