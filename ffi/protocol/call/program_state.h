// A call as the local program sees it: made or not, under way, or over.

#ifndef FFI_PROTOCOL_CALL_PROGRAM_STATE_H_
#define FFI_PROTOCOL_CALL_PROGRAM_STATE_H_

#include <cstdint>

#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

class ProgramState {
 public:
  void Submit(Instant now, const Submission& submission) {
    phase_ = Phase::kRunning;
    submitted_at_ = now;
    called_at_ = now - submission.pending_for;
    token_ = submission.token;
    skipped_ = submission.skipped;
  }
  // The program has made a later call instead.
  void Abandon() { phase_ = Phase::kAbandoned; }
  void Finish() { phase_ = Phase::kFinished; }
  void Merge() { phase_ = Phase::kMerged; }

  // The program has not made the call, which is not over for it.
  bool uncalled() const { return phase_ == Phase::kUncalled || abandoned(); }
  bool abandoned() const { return phase_ == Phase::kAbandoned; }
  bool submitted() const { return running() || finished(); }
  // The program waits for its result.
  bool running() const { return phase_ == Phase::kRunning; }
  // The program has its result, or an error.
  bool finished() const { return phase_ == Phase::kFinished; }
  // The program gets its result with a later call.
  bool merged() const { return phase_ == Phase::kMerged; }
  bool over() const { return finished() || merged(); }

  Instant submitted_at() const { return submitted_at_; }
  // When the program called it; it may have been held until it was submitted.
  Instant called_at() const { return called_at_; }
  std::uint64_t token() const { return token_; }
  std::uint32_t skipped() const { return skipped_; }

 private:
  enum class Phase : std::uint8_t { kUncalled, kAbandoned, kRunning, kFinished, kMerged };

  Phase phase_ = Phase::kUncalled;
  Instant submitted_at_{};
  Instant called_at_{};
  std::uint64_t token_ = 0;
  std::uint32_t skipped_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_PROGRAM_STATE_H_
