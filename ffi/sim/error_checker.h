// The permitted errors of a call, their times, and the required contents of their messages.

#ifndef FFI_SIM_ERROR_CHECKER_H_
#define FFI_SIM_ERROR_CHECKER_H_

#include "ffi/base/status.h"
#include "ffi/sim/bounds.h"
#include "ffi/sim/run_log.h"

namespace optireduce {

class ErrorChecker {
 public:
  ErrorChecker(RunLog& log, const Bounds& bounds) : log_(log), bounds_(bounds) {}

  // Handles a call that was refused, or ended with an error.
  void Check(Instant now, const SimCallRecord& record, const Status& status);

 private:
  // When a rank may give up a peer.
  struct GiveUpTime {
    Instant earliest = kNever;
    Instant latest{};
  };

  // The rank leaves, has cancelled the call, or was removed.
  bool EndedItself(Instant now, const SimCallRecord& record, const Status& status) const;
  // Where a call waits for a rank that answers and does not call.
  void CheckTooLong(Instant now, const SimCallRecord& record, const Status& status);
  bool NamesUncalled(Instant now, const SimCallRecord& record, const Status& status) const;
  void CheckMismatch(Instant now, const SimCallRecord& record, const Status& status);
  bool NamesOther(const SimCallRecord& record, const Status& status) const;
  // The error names a member that is gone, at the time when it may be.
  void CheckGone(Instant now, const SimCallRecord& record, const Status& status);
  // Whether `from` may give `rank` up.
  bool Gone(Rank from, Rank rank) const;
  // The error says that no majority can be reached.
  bool SaysMinority(const Status& status) const;
  // The error is of a path that loses long datagrams, and names the sizes that pass.
  void CheckBlackHole(Instant now, const SimCallRecord& record, const Status& status);
  void CheckSilence(Instant now, const SimCallRecord& record, const Status& status);
  GiveUpTime GiveUpTimeOf(Instant now, const SimCallRecord& record, Rank member,
                          const Status& status) const;
  // When `rank` began to wait for an answer of `peer` on the lane, if it has not heard it since.
  Instant AskedAt(Instant now, Rank rank, Rank peer, const LaneRecord& lane) const;

  RunLog& log_;
  const Bounds& bounds_;
};

}  // namespace optireduce

#endif  // FFI_SIM_ERROR_CHECKER_H_
