// Ranks that have missed calls, with kCatchUpWorldSizeMin ranks or more.
//
// A rank that was absent finds the others in later calls. If it made each call that it has missed,
// it would be late in every call from then on. Instead it waits until the others begin their next
// call, and skips to that one: from that call on it is in time. The results that it has missed come
// with it. A wait in vain, or one that would be, ends the call at once: the rank passes it, and its
// contribution goes with the next one. So a rank comes to where the others wait for it outside of
// the session. docs/protocol.md has the states of a step (StepClock) in one picture.

#ifndef FFI_PROTOCOL_LIFECYCLE_CATCH_UP_H_
#define FFI_PROTOCOL_LIFECYCLE_CATCH_UP_H_

#include <cstdint>
#include <optional>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/lifecycle/front.h"
#include "ffi/protocol/lifecycle/step_clock.h"
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
      : session_(session), membership_(membership), front_(session) {}

  // An error if the position of the call is too high.
  Status Check(const Submission& submission) const;
  // The program makes a call, whose turn it may not be yet.
  void Call(const Submission& submission);

  // How a call of the program begins.
  struct Turn {
    Sequence number;
    Instant waits_until{};  // unless something happens before; kNever: only what happens ends it
    bool tells = false;     // the call is a drain whose number the others have to know
    bool patient = false;   // it can wait for long
    bool passes = false;    // the others are past the call
    bool ended = false;     // the others make no more calls, or none before a drain
    bool complete = false;  // all its results have come
    // The call is over before it begins.
    bool over() const { return passes || ended; }
  };
  // `origin` is the collective of the submission, whose sequence is its position.
  //
  // The number of the call if it skips no more; it has no lower one.
  Sequence UsualNumber(const Collective& origin, const Submission& submission);
  // `since` is when the program has made the call.
  Turn Find(Instant now, Instant since, const Collective& origin, const Submission& submission);
  // The turn of a call that the program has given up.
  Turn FindGivenUp(const Collective& origin, const Submission& submission);
  // A call waits until the others begin the one of that number. Tells them, who announce that, and
  // wait for the data of this rank again.
  void Wait(Instant now, Collective& collective, const Turn& turn);
  // The call begins: the submission gets its number. `waited`: for the others to begin theirs.
  void Begin(const Turn& turn, bool waited, Collective& origin, Submission& submission);

  // The drain that a peer has given up in place of the submitted one, whatever its number.
  std::optional<CallId> FindDrainGivenUp(const Collective& origin,
                                         const Submission& submission) const;
  // Tells the others the least number of a drain that this rank waits in. False if they know.
  bool Tell(Collective& origin, Sequence least);

  // A member waits until the others begin a call after `skipped`, possibly for long.
  void HandleReturn(Collective& collective, MemberIndex member, Sequence skipped, bool patient);
  // This rank begins a call: members that wait for it may not be owners, whom its data shows that.
  void AnswerReturned(Collective& collective, Sequence number);

 private:
  void TellBegun(const Collective& collective, MemberIndex member, Sequence number);
  void TellOthers(const Collective& collective, const SentInfo& info);
  bool Applies(const Collective& origin) const;
  Turn FindDrain(const Collective& origin, Sequence least) const;
  // The turn of a call that is over for the others, whose next one is `next`.
  Turn FindBehind(Instant now, Instant since, const Collective& origin, Sequence usual,
                  Sequence next) const;
  // A call of the others that this rank has not made.
  enum class Progress : std::uint8_t {
    kUnderWay,
    kComplete,  // all results have come, and this rank owns none of them
    kOver,      // nothing that is sent for it now is in time
  };
  Progress ProgressOf(const Collective& origin, Sequence number) const;
  // The least number of a drain: calls of lower ones are over, though this rank has not called
  // them, or are of an earlier view.
  Sequence FirstDrain(const Collective& origin) const;
  // The others make no more calls, or none before a drain.
  bool OthersHaveEnded(const Collective& origin, Sequence number, Sequence position) const;
  // The time for which the others may wait for this rank before they make their next call.
  Duration LongestWaitOfOthers() const;
  // Some rank waits for this one in a call that its program has not made.
  bool OthersWait(Instant now) const;
  // Calls `visit(call, open)` for the open calls of the collective and its successors.
  template <typename Visit>
  void ForEachOpen(const Collective& origin, Visit visit) const;
  // Calls `visit(call)` for the highest call of each of them that has merged into a later one.
  template <typename Visit>
  void ForEachMerged(const Collective& origin, Visit visit) const;

  SessionState& session_;
  LaneMembership& membership_;
  Front front_;
  StepClock clock_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_LIFECYCLE_CATCH_UP_H_
