// SIGTERM, for a process whose main thread may be inside a call that waits.
//
// JAX's preemption service takes SIGTERM and only notes it, in C and unseen by Python. The handler
// here stands before JAX's and Python's and calls both. If asked to, it also closes the sessions
// at once, on a thread of its own, and sees to it that the process ends.

#ifndef FFI_BIND_TERMINATION_H_
#define FFI_BIND_TERMINATION_H_

#include <functional>

#include "ffi/base/status.h"
#include "ffi/base/time.h"

namespace optireduce {

// Calls `install`, which makes SIGTERM a signal that Python handles, and stands before the handlers
// of before and after. With `on_signal` a thread calls that when the signal comes; unless
// TerminationHandled() is called soon after, the signal then ends the process as if there were no
// handler. Only the first call has an effect.
Status ChainTermination(const std::function<void()>& install, std::function<void()> on_signal);
// Puts the handler of before back, unless the program has replaced ours.
void UnchainTermination();
// The main thread has noticed the signal, and ends the process in its own time.
void TerminationHandled();
// SIGTERM without a handler ends the process after `limit`, if it is still there. Of several
// limits the last one counts. Without ChainTermination() nothing happens.
void EndWithin(Duration limit);

}  // namespace optireduce

#endif  // FFI_BIND_TERMINATION_H_
