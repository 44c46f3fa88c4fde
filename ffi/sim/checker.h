// The invariants of every run, on any network. Called on every event; remembers the first
// violation, after which the run ends. Each group of invariants has a class of its own.

#ifndef FFI_SIM_CHECKER_H_
#define FFI_SIM_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/sim/bounds.h"
#include "ffi/sim/error_checker.h"
#include "ffi/sim/leaf_checker.h"
#include "ffi/sim/network.h"
#include "ffi/sim/removal_checker.h"
#include "ffi/sim/result_checker.h"
#include "ffi/sim/run_log.h"
#include "ffi/sim/step_checker.h"
#include "ffi/sim/time_checker.h"
#include "ffi/sim/traffic_checker.h"

namespace optireduce {

class Checker {
 public:
  Checker(const Scenario& scenario, const Workload& workload)
      : log_(scenario, workload), bounds_(scenario, workload) {}

  // Empty while everything held.
  const std::string& failure() const { return log_.failure; }
  void Fail(Instant now, Rank rank, const std::string& what) { log_.Fail(now, rank, what); }

  // ---- Actions of the ranks, in their order.

  // A program computes until it makes its next call.
  void Computing() { times_.RecordComputing(); }
  // A call begins: makes its leaves and fills them. The token is that of the submission.
  Submission Begin(Instant now, Rank rank, SimCall call);
  // The endpoint took it, or refused it.
  void Submitted(Instant now, std::uint64_t token, const Status& status);
  // Some lane has refused its part.
  void PartlyRefused(std::uint64_t token) { log_.calls[token].partly_refused = true; }
  // A lane has done its part of the call `token`.
  void PartDone(Instant now, Rank rank, std::uint16_t lane, std::uint64_t token,
                const CallDone& part);
  void Done(Instant now, Rank rank, const CallDone& done);
  void Stopped(Instant now, Rank rank) { log_.ranks[rank.index()].stopped_at = now; }
  void Left(Instant now, Rank rank) { log_.ranks[rank.index()].left_at = now; }
  void Cancelled(Instant now, Rank rank) { log_.ranks[rank.index()].cancelled_at = now; }
  // It ends this call, whether or not its endpoint has it.
  void GaveUp(Instant now, Rank rank, SimCall call);

  // See TrafficChecker.
  void Delivered(Instant now, const Arrival& delivery, const Counters& counters) {
    traffic_.Delivered(now, delivery, counters);
  }
  void Polled(Instant now, Rank node, const Transmit& transmit, std::size_t batch_max) {
    traffic_.Polled(now, node, transmit, batch_max);
  }
  void Driven(Instant now, Rank node, const Endpoint& endpoint);

  // ---- The end: no event is pending.
  void FailOpenCalls(Instant now);
  void Finish(Instant now, const Network& network);

  // Longest duration of a call once it waits for the network only and no fault is active.
  Duration LivenessBound() const { return bounds_.Liveness(); }
  Duration liveness_worst() const { return times_.liveness_worst(); }

 private:
  // The rank's own record of that token; null if there is none, which is a violation.
  SimCallRecord* FindCall(Instant now, Rank rank, std::uint64_t token);

  RunLog log_;
  Bounds bounds_;
  LeafChecker leaves_{log_};
  ResultChecker results_{log_};
  TimeChecker times_{log_, bounds_};
  ErrorChecker errors_{log_, bounds_};
  RemovalChecker removals_{log_, bounds_, results_};
  TrafficChecker traffic_{log_, bounds_};
  StepChecker steps_{log_, bounds_};
};

}  // namespace optireduce

#endif  // FFI_SIM_CHECKER_H_
