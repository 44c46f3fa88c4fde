// Threads for completions, which must never run on a lane's thread.
//
// Completing a call's promise may run the rest of the XLA program on the completing thread, and
// that may wait for a rendezvous with another device, whose own call is completed here too. So a
// task may block for long, and a task that waits must find a thread: the pool starts one whenever
// no idle one is left. A fixed number of threads would deadlock sooner or later.

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
  // Tasks beyond it wait for a thread (counted in `waited`).
  // Chosen: far above local devices times calls in flight; still below common limits of a process.
  std::size_t threads_max = 512;

  // Wait of an idle thread for work before it ends.
  // Chosen: longer than the pause between two training steps.
  Duration idle = std::chrono::seconds(10);

  // Longest wait of the destructor for tasks that block; it abandons their threads afterwards.
  // Chosen: at exit, a program that hangs is worse than a thread that is never joined.
  Duration shutdown = std::chrono::seconds(2);
};

struct CompletionPoolCounters {
  std::uint64_t tasks = 0;         // given to the pool so far
  std::uint64_t threads = 0;       // running now, idle ones included
  std::uint64_t threads_peak = 0;  // most that ever ran at once
  std::uint64_t waited = 0;        // tasks that found no idle thread while no new one could start
};

// Thread-safe.
class CompletionPool {
 public:
  explicit CompletionPool(const CompletionPoolOptions& options = {});
  // Runs the pending tasks, then ends the threads. May be called from a task: it does not wait for
  // that thread, nor for threads that stay blocked for longer than `shutdown`.
  ~CompletionPool();
  CompletionPool(const CompletionPool&) = delete;
  CompletionPool& operator=(const CompletionPool&) = delete;

  // Runs `task` soon, on a thread of the pool. Never blocks and never runs it on the caller's
  // thread. The task must not throw.
  void Run(std::function<void()> task);

  CompletionPoolCounters counters() const;

 private:
  struct Shared;
  // Threads hold it as well, so that a thread that outlives the pool touches valid memory only.
  std::shared_ptr<Shared> shared_;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_COMPLETION_POOL_H_
