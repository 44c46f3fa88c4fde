// The programs of the ranks: the times of their calls of the workload, their reactions to the end
// of a call, and their own end.

#ifndef FFI_SIM_PROGRAMS_H_
#define FFI_SIM_PROGRAMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/prng.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"
#include "ffi/sim/call_times.h"
#include "ffi/sim/checker.h"
#include "ffi/sim/scenario.h"
#include "ffi/sim/setup.h"
#include "ffi/sim/trace.h"
#include "ffi/sim/workload.h"

namespace optireduce {

// Schedules the next call of this chain by the program of `rank` for `at`.
using ScheduleCallFunction = std::function<void(Instant at, Rank rank, std::size_t chain)>;

class Programs {
 public:
  Programs(const Scenario& scenario, const Workload& workload, Prng& prng, Checker& checker,
           Trace& trace, ScheduleCallFunction schedule);

  void Start();
  // The scheduled call; nothing if the program has ended since.
  std::optional<SimCall> NextCall(Rank rank, std::size_t chain) const;

  // Handles the acceptance or refusal of the next call by the endpoint. If it ends the program and
  // its rank leaves, returns the reason.
  std::optional<Status> Submitted(Instant now, Rank rank, std::size_t chain, std::uint64_t token,
                                  const Status& status);
  // Handles the end of a call in the same way.
  std::optional<Status> Done(Instant now, Rank rank, const CallDone& done);

  // Handles a call that the rank never makes: its number is used up, and the program continues.
  std::optional<Status> GaveUp(Instant now, Rank rank, std::size_t chain);

  // After a removal the remaining ranks repeat the drain, which lacked the data deferred for the
  // removed rank. To be called after Done, once for all calls that ended together.
  void RepeatDrains(Instant now);
  // The rank stops or leaves: it begins no more calls.
  void Stop(Rank rank);

  std::vector<CallReport> CallReports() const { return times_.Reports(); }

 private:
  struct Chain {
    std::vector<SimCall> calls;
    std::size_t next = 0;
    std::optional<std::uint64_t> token;  // token of the open call
    Instant begun{};                     // the first call of this number
    Instant submitted{};                 // the last call

    // True for the first of several collectives that ranks call in order under one number.
    bool IsFirstOfNumber() const { return next == 0 || calls[next].index != calls[next - 1].index; }
    bool ended() const { return next == calls.size(); }
    void End() { next = calls.size(); }
  };
  struct Program {
    std::vector<Chain> chains;
    std::size_t chains_left = 0;
    std::vector<std::size_t> calls_ended;  // one for each collective
    bool stopped = false;
  };

  Program& program(Rank rank) { return programs_[rank.index()]; }
  Duration Random(std::uint64_t most_us) { return Microseconds(prng_.Below(most_us + 1)); }

  // `from`: start of the computation before the call.
  void ScheduleCall(Instant now, Instant from, Rank rank, std::size_t chain, Duration pause);
  void Schedule(Instant at, Rank rank, std::size_t chain);
  std::optional<Status> AdvanceChain(Instant now, Instant from, Rank rank, std::size_t chain);
  // The program waits for those of all other ranks.
  void Meet(Instant now, Rank rank, std::size_t chain);
  // A drain with missing data requests one more drain from all ranks.
  void RecordDrain(Instant now, Rank rank, SimCall call, const CallDone& done);
  std::optional<Status> End(Rank rank, const Status& why);

  const Scenario& scenario_;
  const Workload& workload_;
  Prng& prng_;
  Checker& checker_;
  Trace& trace_;
  ScheduleCallFunction schedule_;
  std::vector<Program> programs_;          // one for each rank
  std::vector<Rank> met_;                  // wait for the others
  std::vector<std::size_t> calls_wanted_;  // calls of each rank, one for each collective
  CallTimes times_;
};

}  // namespace optireduce

#endif  // FFI_SIM_PROGRAMS_H_
