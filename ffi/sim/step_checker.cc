#include "ffi/sim/step_checker.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "ffi/sim/call_values.h"

namespace optireduce {
namespace {

using std::chrono::microseconds;

}  // namespace

Instant StepChecker::QuietFrom() const {
  const Scenario& s = log_.scenario;
  const Instant delayed = At(s.straggle_end_us + s.straggle_us);
  return std::max({bounds_.FaultsEnd(), At(s.start_skew_us), delayed});
}

void StepChecker::Check(Instant now, const SimCallRecord& record, const CallDone& done) {
  const Scenario& s = log_.scenario;
  if (s.settle_calls == 0 || !done.status.ok()) return;
  if (ending_ || record.submitted_at < QuietFrom()) return;
  calls_.resize(s.ranks * s.collectives);
  std::size_t& calls = calls_[record.rank.index() * s.collectives + record.call.collective];
  if (++calls <= s.settle_calls) return;
  const Duration took = now - record.submitted_at;
  const Duration deadline = microseconds(s.reduce_scatter_deadline_us + s.all_gather_deadline_us);
  if (IsWhole(done.stats) && took <= deadline) return;
  log_.Fail(now, record.rank,
            record.Name() + " took " + Milliseconds(took) +
                (IsWhole(done.stats) ? "" : ", and data of it was late,") + " though it is the " +
                std::to_string(calls) + "th call of its rank after the last fault");
}

}  // namespace optireduce
