// The times of calls: within their deadlines, and within the bounds of the network and the faults.

#ifndef FFI_SIM_TIME_CHECKER_H_
#define FFI_SIM_TIME_CHECKER_H_

#include <array>
#include <cstddef>

#include "ffi/protocol/submission.h"
#include "ffi/sim/bounds.h"
#include "ffi/sim/run_log.h"

namespace optireduce {

class TimeChecker {
 public:
  TimeChecker(RunLog& log, const Bounds& bounds) : log_(log), bounds_(bounds) {}

  // A program computes until it makes its next call, and has made it.
  void RecordComputing() { ++computing_; }
  void RecordCall(Instant now) {
    --computing_;
    progress_at_ = now;
  }
  // Handles the end of a call.
  void Check(Instant now, const SimCallRecord& record, const CallDone& done);
  // A peer has answered after so long.
  static void RecordAnswer(LaneRecord& lane, Duration gap);
  // Longest duration of a call beyond the delays of its ranks and faults: the reserve of the bound.
  Duration liveness_worst() const { return liveness_worst_; }

 private:
  // A fault during which one rank does not hear another one.
  struct Outage {
    Instant from = kNever;
    Instant until{};
  };
  // The wait of a bounded call for its peers.
  struct Wait {
    Instant from{};              // it waits for no peer that answers
    Instant slow_from = kNever;  // it waits for a program that is slow
  };

  // The call took at most `longest` and the delays of its own rank.
  void CheckWithin(Instant now, const SimCallRecord& record, Duration longest, const char* subject,
                   const char* rule);
  void CheckLiveness(Instant now, const SimCallRecord& record);
  // While all programs wait in calls, one of these ends by deadlines and the network: no two wait
  // for each other.
  void CheckProgress(Instant now, const SimCallRecord& record);
  // A bounded call does not wait for peers that are behind and do not answer.
  void CheckLag(Instant now, const SimCallRecord& record);
  bool IsFrozen(Rank rank) const;
  std::array<Outage, 4> OutagesOf(Rank from, Rank rank) const;
  // `from` does not hear `rank` from then on, for a while or for ever; kNever: nothing is wrong.
  Instant AwayFrom(Rank from, Rank rank) const;
  // When that is over.
  Instant BackAt(Rank from, Rank rank) const;
  // The time from which on a member that is away since `away` is not waited for: it answers again,
  // or its silence is longer than usual.
  Instant LeftBehindBy(const SimCallRecord& record, Rank member, Instant away) const;
  // Adds the wait for a member that has to call `index`.
  void AddWait(Instant now, const SimCallRecord& record, Rank member, std::size_t index,
               Wait& wait) const;
  // The time by which data of the call can pass, once its ranks have called it.
  Instant PassesFrom(SimCall call) const;
  // The time from which on a call waits for the network only; `now` if a rank has to call first.
  Instant WaitsFrom(Instant now, const SimCallRecord& record) const;

  RunLog& log_;
  const Bounds& bounds_;
  Duration liveness_worst_{};
  std::size_t computing_ = 0;  // chains of programs that are in no call, before their next one
  Instant progress_at_{};      // a call was made, or ended
};

}  // namespace optireduce

#endif  // FFI_SIM_TIME_CHECKER_H_
