// SIGTERM, for a process whose main thread may be inside a call that waits.
//
// JAX's preemption service takes SIGTERM and only notes it, in C and unseen by Python, for programs
// that ask it when to save their state. Unless the program does, or has a handler of its own, the
// handler here closes the sessions at once, on a thread of its own, calls Python's, and sees to it
// that the process ends.

#ifndef FFI_BIND_TERMINATION_H_
#define FFI_BIND_TERMINATION_H_

#include <functional>

#include "ffi/base/status.h"
#include "ffi/base/time.h"

namespace optireduce {

// Calls `install`, which makes SIGTERM a signal that Python handles, and stands before Python's
// handler and the one of before. With `on_signal` a thread calls that, and unless
// TerminationHandled() is called soon after, the signal ends the process as if there were no
// handler. Without it only Python's is called. Only the first call has an effect.
Status ChainTermination(const std::function<void()>& install, std::function<void()> on_signal);
// From now on the handler of before is called: instead of `on_signal` and Python's handler, if
// there is an `on_signal`, else beside Python's.
void TellHandlerOfBefore();
// The main thread has noticed the signal, and ends the process in its own time.
void TerminationHandled();
// SIGTERM without a handler ends the process after `limit`, if it is still there. Of several
// limits the last one counts. Without ChainTermination() nothing happens.
void EndWithin(Duration limit);

}  // namespace optireduce

#endif  // FFI_BIND_TERMINATION_H_
