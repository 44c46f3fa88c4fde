// SIGTERM, for a process whose main thread may be inside a waiting call.
//
// JAX's preemption service catches SIGTERM and only records it, in C and invisible to Python, for
// programs that query it when to save their state. Unless the program does so, or has a handler of
// its own, the handler here closes the sessions immediately, on a thread of its own, calls Python's
// handler, and ensures that the process ends.

#ifndef FFI_BIND_TERMINATION_H_
#define FFI_BIND_TERMINATION_H_

#include <functional>

#include "ffi/base/status.h"
#include "ffi/base/time.h"

namespace optireduce {

// Calls `install`, which makes Python handle SIGTERM, and installs a handler in front of Python's
// and of the previous one. With `on_signal` a thread calls that function, and unless
// TerminationHandled() is called soon after, the signal ends the process as if there were no
// handler. Without it only Python's handler is called. Only the first call has an effect. The
// caller is Python's main thread.
Status ChainTermination(const std::function<void()>& install, std::function<void()> on_signal);
// From now on the previous handler is called: in place of `on_signal` and Python's handler if there
// is an `on_signal`, otherwise in addition to Python's.
void ForwardToPreviousHandler();
// The main thread has noticed the signal, and ends the process itself.
void TerminationHandled();
// A SIGTERM without a handler ends the process if it still runs after `limit`. The last of several
// limits counts. No effect without ChainTermination().
void EndWithin(Duration limit);
// Makes `code` the exit code of this process, whose end has begun. Destructors of static objects do
// not run.
void ExitWith(int code);

}  // namespace optireduce

#endif  // FFI_BIND_TERMINATION_H_
