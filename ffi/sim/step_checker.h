// Ranks that skip calls are in step again after the last fault: all data of all calls is in time.

#ifndef FFI_SIM_STEP_CHECKER_H_
#define FFI_SIM_STEP_CHECKER_H_

#include <cstddef>
#include <vector>

#include "ffi/protocol/submission.h"
#include "ffi/sim/bounds.h"
#include "ffi/sim/run_log.h"

namespace optireduce {

class StepChecker {
 public:
  StepChecker(RunLog& log, const Bounds& bounds) : log_(log), bounds_(bounds) {}

  // Some program has made its last call but a drain: it is in no more calls of the others.
  void RecordDrain() { ending_ = true; }
  // Handles the end of a call.
  void Check(Instant now, const SimCallRecord& record, const CallDone& done);

 private:
  // From then on no rank is late by chance.
  Instant QuietFrom() const;

  RunLog& log_;
  const Bounds& bounds_;
  std::vector<std::size_t> calls_;  // made since then, one for each rank and collective
  bool ending_ = false;
};

}  // namespace optireduce

#endif  // FFI_SIM_STEP_CHECKER_H_
