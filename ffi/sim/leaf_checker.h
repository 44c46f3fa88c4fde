// The leaves of calls: filled, gathered, and unchanged outside of the call and after its end.

#ifndef FFI_SIM_LEAF_CHECKER_H_
#define FFI_SIM_LEAF_CHECKER_H_

#include <cstddef>
#include <vector>

#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"
#include "ffi/sim/run_log.h"

namespace optireduce {

class LeafChecker {
 public:
  explicit LeafChecker(RunLog& log) : log_(log) {}

  // Makes the leaves of the call with the contribution of its rank.
  std::vector<Leaf> MakeLeaves(Instant now, SimCallRecord& record);
  // Notes the leaves at the end of a call. Returns its bucket; empty after a violation.
  std::vector<std::byte> EndCall(Instant now, SimCallRecord& record);
  // The leaves are unchanged since the end of each call.
  void Finish(Instant now);

 private:
  // The contribution of the call's rank, as one bucket.
  std::vector<std::byte> Values(const SimCallRecord& record) const;
  void CheckUntouched(Instant now, const SimCallRecord& record);
  // Drops the leaves of the oldest calls, where all of them together are too large.
  void ReleaseLeaves(Instant now);

  RunLog& log_;
  std::size_t leaf_bytes_ = 0;  // size of the leaves that records hold
  std::size_t released_ = 0;    // the leaves of records before this one are dropped
};

}  // namespace optireduce

#endif  // FFI_SIM_LEAF_CHECKER_H_
