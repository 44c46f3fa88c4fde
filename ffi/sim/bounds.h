// The longest times and the most memory that a scenario explains.

#ifndef FFI_SIM_BOUNDS_H_
#define FFI_SIM_BOUNDS_H_

#include <cstddef>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/sim/scenario.h"
#include "ffi/sim/workload.h"

namespace optireduce {

class Bounds {
 public:
  Bounds(const Scenario& scenario, const Workload& workload)
      : scenario_(scenario), workload_(workload) {}

  // The delay of any event by a driver that wakes late, or that cannot send.
  Duration DriverSlack() const;
  // Longest duration of a call once it waits for the network only and no fault is active.
  Duration Liveness() const;
  // Longest time of the network for the data that a bounded call waits for.
  Duration Lag() const;
  // Longest time for which a call is held until its members are agreed.
  Duration Agreement() const;
  // Longest time until all silent ranks are removed.
  Duration Silence() const;
  // The end of all faults that end.
  Instant FaultsEnd() const;
  // The time by which a path that loses long datagrams is given up, if there is one.
  Instant PathGivenUpBy() const;
  bool MayGiveUpPath(Instant now) const;
  // How many calls ahead of a rank's program its endpoint certainly takes data.
  std::size_t CallsAhead() const;
  // The memory bound of all lanes of the rank.
  std::size_t Memory(Rank rank) const;

 private:
  // The size of an owner's shard, with several lanes of all its parts.
  std::size_t ShardBytes(const SimCollective& collective) const;
  const Scenario& scenario_;
  const Workload& workload_;
};

}  // namespace optireduce

#endif  // FFI_SIM_BOUNDS_H_
