#include "ffi/runtime/completion_pool.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>

namespace optireduce {

struct CompletionPool::Shared {
  explicit Shared(const CompletionPoolOptions& pool_options) : options(pool_options) {}

  const CompletionPoolOptions options;
  mutable std::mutex mutex;
  std::condition_variable work;   // a task was added, or the pool stops
  std::condition_variable ended;  // a thread ended
  std::deque<std::function<void()>> tasks;
  std::unordered_set<std::thread::id> threads;
  std::size_t starting = 0;  // started, not yet in `threads`
  std::size_t idle = 0;
  bool stopping = false;
  CompletionPoolCounters counters;

  std::size_t thread_count() const { return threads.size() + starting; }

  // True if a thread was started. Requires the mutex.
  static bool TryStart(const std::shared_ptr<Shared>& shared) {
    if (shared->thread_count() >= shared->options.threads_max) return false;
    try {
      // Detached: an idle thread retires without another thread to join it.
      std::thread([shared] { Work(*shared); }).detach();
    } catch (const std::system_error&) {
      // The process has reached its limit of threads; the running ones take the task.
      return false;
    }
    ++shared->starting;
    if (shared->thread_count() > shared->counters.threads_peak) {
      shared->counters.threads_peak = shared->thread_count();
    }
    return true;
  }

  static void Work(Shared& shared) {
    std::unique_lock lock(shared.mutex);
    --shared.starting;
    shared.threads.insert(std::this_thread::get_id());
    while (true) {
      if (shared.tasks.empty()) {
        if (shared.stopping) break;
        ++shared.idle;
        const bool woken = shared.work.wait_for(
            lock, shared.options.idle, [&] { return !shared.tasks.empty() || shared.stopping; });
        --shared.idle;
        // The last thread stays, for tasks that arrive when no new thread can be started.
        if (!woken && shared.thread_count() > 1) break;
        continue;
      }
      std::function<void()> task = std::move(shared.tasks.front());
      shared.tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // The captures may be costly to destroy: not under the lock.
      lock.lock();
    }
    shared.threads.erase(std::this_thread::get_id());
    shared.ended.notify_all();
  }
};

CompletionPool::CompletionPool(const CompletionPoolOptions& options)
    : shared_(std::make_shared<Shared>(options)) {
  const std::lock_guard lock(shared_->mutex);
  // After a failure Run() tries again.
  Shared::TryStart(shared_);
}

CompletionPool::~CompletionPool() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->work.notify_all();
  const std::size_t own = shared_->threads.contains(std::this_thread::get_id()) ? 1 : 0;
  shared_->ended.wait_for(lock, shared_->options.shutdown,
                          [&] { return shared_->thread_count() <= own; });
}

void CompletionPool::Run(std::function<void()> task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.push_back(std::move(task));
  ++shared_->counters.tasks;
  // Each starting and each idle thread takes one task.
  const std::size_t takers = shared_->idle + shared_->starting;
  if (shared_->tasks.size() > takers && !Shared::TryStart(shared_)) ++shared_->counters.waited;
  shared_->work.notify_one();
}

CompletionPoolCounters CompletionPool::counters() const {
  const std::lock_guard lock(shared_->mutex);
  CompletionPoolCounters counters = shared_->counters;
  counters.threads = shared_->thread_count();
  return counters;
}

}  // namespace optireduce
