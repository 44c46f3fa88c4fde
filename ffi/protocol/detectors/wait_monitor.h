// Calls that wait without a deadline: what they wait for, when to look at them again, and the bound
// of all waiting (call_timeout_s), which ends a call although every peer answers.

#ifndef FFI_PROTOCOL_DETECTORS_WAIT_MONITOR_H_
#define FFI_PROTOCOL_DETECTORS_WAIT_MONITOR_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/session/session_state.h"

namespace optireduce {

// Chosen: three signs in a row may be lost before a peer is given up.
inline constexpr int kSignsPerTimeout = 4;

// A call under way, and the ranks that it waits for.
struct WaitingCall {
  std::uint64_t token = 0;   // token of its submission
  Sequence sequence;         // its number, skipped calls included
  std::vector<Rank> ranks;   // their contributions are missing, or else their results and answers
  std::vector<Rank> absent;  // the ranks of these that have not shown that they are in this call
};

class WaitMonitor {
 public:
  // `session` must outlive this.
  explicit WaitMonitor(const SessionState& session) : session_(session) {}

  WaitingCall WaitingFor(const Exchange& exchange) const;

  // ---- When to look.

  // A call has begun to wait.
  void Add(Instant now, const Exchange& exchange) {
    if (next_ == kNever) next_ = now;
    LookAt(ExpiresAt(exchange.program().called_at()));
  }
  // A call of PopDue() still waits.
  void AddAgain(Instant now, const Exchange& exchange);
  // Something else still waits.
  void LookAgain(Instant now);
  void LookAt(Instant at) { next_ = std::min(next_, at); }
  Instant timeout() const { return next_; }
  // All calls that wait, if it is time to look. Final drains are among them where calls are `held`.
  std::vector<CallId> PopDue(Instant now, bool held);
  static bool Waits(const Exchange& exchange, bool held) {
    return exchange.waiting() ||
           (held && exchange.call().sequence == kFinalDrain && exchange.program().running());
  }

  // ---- The bound.

  // When a call has waited for too long that was made at `called_at`.
  Instant ExpiresAt(Instant called_at) const;
  // The error of a call that has; else ok.
  Status WhyExpired(Instant now, const Exchange& exchange) const;

 private:
  // The members that have not made the call: a rank whose result is missing may be waiting itself.
  // If all have, the ranks that the call waits for.
  std::vector<Rank> Uncalled(const Exchange& exchange) const;
  // The last sign of life of the rank, for an error.
  std::string LastSignOf(Instant now, Rank rank) const;

  const SessionState& session_;
  Instant next_ = kNever;  // set while a call waits
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DETECTORS_WAIT_MONITOR_H_
