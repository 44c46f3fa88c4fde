// Threads for completions, which must never run on a lane's thread.
//
// Completing a call's promise may run the rest of the XLA program on the completing thread, and
// that may wait for a rendezvous with another device, whose own call this pool completes too. So a
// task may block for long, and every pending task needs a thread: the pool starts one whenever no
// thread is idle. A fixed number of threads could deadlock.

#ifndef FFI_RUNTIME_COMPLETION_POOL_H_
#define FFI_RUNTIME_COMPLETION_POOL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "ffi/base/time.h"

namespace optireduce {

struct CompletionPoolOptions {
  // Tasks beyond this limit wait for a thread (counted in `waited`).
  // Chosen: far above local devices times calls in flight; still below common limits of a process.
  std::size_t threads_max = 512;

  // Time after which an idle thread ends.
  // Chosen: longer than the pause between two training steps.
  Duration idle = std::chrono::seconds(10);

  // Longest wait of the destructor for blocked tasks; it abandons their threads afterwards.
  // Chosen: at exit, a program that hangs is worse than a thread that is never joined.
  Duration shutdown = std::chrono::seconds(2);
};

struct CompletionPoolCounters {
  std::uint64_t tasks = 0;         // given to the pool so far
  std::uint64_t threads = 0;       // running now, idle ones included
  std::uint64_t threads_peak = 0;  // maximum of simultaneous threads
  std::uint64_t waited = 0;        // tasks that found no idle thread when no new one could start
};

// Thread-safe.
class CompletionPool {
 public:
  explicit CompletionPool(const CompletionPoolOptions& options = {});
  // Runs the pending tasks, then ends the threads. May be called from a task: it does not wait for
  // that task's thread, nor for threads that stay blocked for longer than `shutdown`.
  ~CompletionPool();
  CompletionPool(const CompletionPool&) = delete;
  CompletionPool& operator=(const CompletionPool&) = delete;

  // Runs `task` on a thread of the pool. Never blocks and never runs the task on the caller's
  // thread. The task must not throw.
  void Run(std::function<void()> task);

  CompletionPoolCounters counters() const;

 private:
  struct Shared;
  // Shared with the threads, so that a thread that outlives the pool accesses valid memory only.
  std::shared_ptr<Shared> shared_;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_COMPLETION_POOL_H_
