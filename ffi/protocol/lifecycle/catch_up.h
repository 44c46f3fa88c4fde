// Ranks that have missed calls, with kCatchUpWorldSizeMin ranks or more.
//
// A rank that was absent finds the others in later calls. If it made each call that it has missed,
// it would be late in every call from then on. Instead it skips the calls that are over, and begins
// its next call at the moment at which the others begin theirs: from that call on it is in time.
// The results that it has missed come with that call. Waits in vain become rare: two ranks may wait
// for each other in different buckets. Where the others wait for the rank in a call of another
// collective, it makes the calls before that one without a wait.
//
// Ranks that have skipped different numbers of calls count differently (SkippedCalls), and a drain
// needs one number. Each rank that waits in a drain tells the least number that it can take, raises
// it to the highest that it hears, and begins once all have told the same one. So at most one
// number is begun, and a rank that hears of a begun drain begins it.

#ifndef FFI_PROTOCOL_LIFECYCLE_CATCH_UP_H_
#define FFI_PROTOCOL_LIFECYCLE_CATCH_UP_H_

#include <optional>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/session/lane_membership.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// The highest position of a call. Chosen: half of the numbers, so that those of skipped calls never
// reach the end.
inline constexpr Sequence kCatchUpPositionMax(kFinalDrain.value() / 2);

class CatchUp {
 public:
  // Both must outlive this.
  CatchUp(SessionState& session, LaneMembership& membership)
      : session_(session), membership_(membership) {}

  // An error if the position of the call is too high.
  Status Check(const Submission& submission) const;

  // How a call of the program begins.
  struct Turn {
    Sequence number;
    Instant waits_until{};  // unless something happens before; kNever: only what happens ends it
    bool tells = false;     // the call is a drain whose number the others have to know
    bool passed = false;    // Submission::passed
    bool behind = false;    // it is, and the others have not begun their next call
  };
  // `origin` is the collective of the submission, whose sequence is its position; `since` is when
  // the program has made the call; `waits_as`: the number under which it waits already.
  Turn Find(Instant now, Instant since, std::optional<Sequence> waits_as, const Collective& origin,
            const Submission& submission);
  // The turn of a call that the program has given up.
  Turn FindGivenUp(const Collective& origin, const Submission& submission);
  // The call begins: the submission gets its number.
  void Begin(const Turn& turn, Collective& origin, Submission& submission);

  // The drain that a peer has given up in place of the submitted one, whatever its number.
  std::optional<CallId> FindDrainGivenUp(const Collective& origin,
                                         const Submission& submission) const;
  // Tells the others the least number of a drain that this rank waits in.
  void Tell(Collective& origin, Sequence least);
  // Tells the others that this rank takes part in the call of that number, which they have not
  // made: they wait for its data again.
  void TellReturn(Instant now, Collective& collective, Sequence number);

  // A member has come back, and waits until the others begin a call after `skipped`.
  void HandleReturn(Collective& collective, MemberIndex member, Sequence skipped);
  // This rank begins a call: members that wait for it may not be owners, whom its data shows that.
  void AnswerReturned(Collective& collective, Sequence number);

 private:
  void TellBegun(const Collective& collective, MemberIndex member, Sequence number);
  bool Applies(const Collective& origin) const;
  // The number of the call if it skips no more.
  Sequence UsualNumber(const Collective& origin, const Submission& submission);
  Turn FindDrain(const Collective& origin, Sequence least) const;
  // The call is over for the others, or about to be: nothing that is sent for it now is in time.
  bool IsOver(const Collective& origin, Sequence number) const;
  void TellOthers(const Collective& collective, const SentInfo& info);
  // The others make no more calls, or none before a drain.
  bool OthersHaveEnded(const Collective& origin, Sequence number, Sequence position) const;
  // The time for which the others may wait for this rank before they make their next call: in each
  // collective once.
  Duration LongestWaitOfOthers() const;
  // Some rank waits for this one in a call that its program has not made.
  bool OthersWait(Instant now) const;
  // Calls `visit(rank)` for the members that take part beside this rank.
  template <typename Visit>
  void ForEachOther(const Collective& origin, Visit visit) const;
  // Calls `visit(call, open)` for the open calls of the collective and its successors.
  template <typename Visit>
  void ForEachOpen(const Collective& origin, Visit visit) const;

  SessionState& session_;
  LaneMembership& membership_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_LIFECYCLE_CATCH_UP_H_
