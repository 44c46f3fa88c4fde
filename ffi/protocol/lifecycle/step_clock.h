// The step of its program that a rank is in, and how the calls of the step begin that are over for
// the others (catch_up.h). One decision holds for all collectives of a step.
//
// A step ends where a collective is called for the second time. So each call of a collective that
// is called twice in a step of training begins a step here, and a collective that is called in
// every tenth joins the step in which it is called.

#ifndef FFI_PROTOCOL_LIFECYCLE_STEP_CLOCK_H_
#define FFI_PROTOCOL_LIFECYCLE_STEP_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <map>

#include "ffi/base/ids.h"

namespace optireduce {

class StepClock {
 public:
  enum class State : std::uint8_t {
    kInStep,   // no call of the step was over for the others
    kWaiting,  // one was: it waits until they begin their next
    kJoined,   // the wait has ended with a call of the others
    kPassing,  // it was in vain, or is too rare: such calls are over before they begin
  };
  State state() const { return state_; }

  // The program makes a call of the collective.
  void Call(CollectiveId collective) {
    const auto [at, first] = step_of_.try_emplace(collective, step_);
    if (first || at->second != step_) {
      at->second = step_;
      return;
    }
    if (state_ == State::kInStep) waits_in_vain_ = 0;
    steps_behind_ = behind_ ? steps_behind_ + 1 : 0;
    behind_ = false;
    state_ = State::kInStep;
    at->second = ++step_;
  }

  // A call is over for the others. True if it may wait for long until they begin `next`; otherwise
  // it waits briefly.
  //
  // After a wait in vain a rank is patient in half of the steps, then in a quarter: in calls of the
  // same numbers as other ranks that are behind, so that they get in step together. Ranks that pass
  // each other skip every second call or more.
  //
  // A wait that is patient stays so.
  bool IsPatient(Sequence next) const {
    if (state_ == State::kWaiting && patient_) return true;
    return next.value() / kCallsWithWaits % (1U << waits_in_vain_) == 0;
  }
  void Wait(bool patient) {
    state_ = State::kWaiting;
    patient_ = patient;
  }
  // The wait ends, since the others have begun their next call.
  void Join() {
    state_ = State::kJoined;
    waits_in_vain_ = 0;
  }
  // A call begins here whose results are all there: the others may be past it.
  void BeginComplete() { behind_ = true; }
  // Whether to wait for the next call instead: the others come to it if this rank has joined them,
  // and a rank that was behind in each of the newest steps would stay so.
  bool WaitsForNext() const { return state_ == State::kJoined || steps_behind_ >= kStepsBehindMax; }
  // The call is over before it begins. Several waits of one step count as one, brief ones as none.
  void Pass() {
    const bool in_vain = state_ == State::kWaiting && patient_;
    if (in_vain) waits_in_vain_ = std::min(waits_in_vain_ + 1, kWaitsInVainMax);
    state_ = State::kPassing;
  }

 private:
  // Chosen: a rank that others wait for outside of the session waits in one of 64 calls.
  static constexpr int kWaitsInVainMax = 6;
  static constexpr std::uint32_t kCallsWithWaits = 4;
  // Chosen: a rank that is slower than the others meets them more often than that.
  static constexpr int kStepsBehindMax = 8;

  State state_ = State::kInStep;
  bool patient_ = false;  // the newest wait can be long
  std::uint64_t step_ = 0;
  std::map<CollectiveId, std::uint64_t> step_of_;  // the newest in which each was called
  int waits_in_vain_ = 0;                          // those after the newest step in time
  bool behind_ = false;                            // a call of this step was complete
  int steps_behind_ = 0;                           // the newest ones with such a call
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_LIFECYCLE_STEP_CLOCK_H_
