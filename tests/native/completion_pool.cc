// The completion pool, with tasks that end when the test releases them.

#include "ffi/runtime/completion_pool.h"

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "tests/native/binding.h"
#include "tests/native/inbox.h"

namespace optireduce::testing {
namespace OR_FILE {

class TestPool {
 public:
  TestPool(std::size_t threads_max, double idle_s, double shutdown_s)
      : pool_(std::make_unique<CompletionPool>(
            CompletionPoolOptions{.threads_max = threads_max,
                                  .idle = FromSeconds(idle_s),
                                  .shutdown = FromSeconds(shutdown_s)})) {}
  ~TestPool() {
    DropAllPeers();
    Close();
  }
  TestPool(const TestPool&) = delete;
  TestPool& operator=(const TestPool&) = delete;

  // The task begins, and ends after its release.
  void Run(int task) {
    pool_->Run([shared = shared_, task] {
      shared->begun.Put(task);
      std::unique_lock lock(shared->mutex);
      shared->changed.wait(lock, [&] { return shared->all || shared->released.contains(task); });
      lock.unlock();
      shared->ended.Put(task);
    });
  }
  void Release(int task) {
    const std::lock_guard lock(shared_->mutex);
    shared_->released.insert(task);
    shared_->changed.notify_all();
  }
  void DropAllPeers() {
    const std::lock_guard lock(shared_->mutex);
    shared_->all = true;
    shared_->changed.notify_all();
  }
  // Ends the pool, which waits for its tasks.
  void Close() {
    const nb::gil_scoped_release release;
    pool_.reset();
  }
  std::vector<int> Begun(std::size_t count) { return shared_->begun.Wait(count); }
  std::vector<int> Ended(std::size_t count) { return shared_->ended.Wait(count); }
  nb::dict Counters() const {
    const CompletionPoolCounters counters = pool_->counters();
    nb::dict named;
    named["tasks"] = counters.tasks;
    named["threads"] = counters.threads;
    named["threads_peak"] = counters.threads_peak;
    named["waited"] = counters.waited;
    return named;
  }

 private:
  struct Shared {
    Inbox<int> begun;
    Inbox<int> ended;
    std::mutex mutex;
    std::condition_variable changed;
    std::set<int> released;
    bool all = false;
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::unique_ptr<CompletionPool> pool_;
};

void Bind(nb::module_& m) {
  const CompletionPoolOptions defaults;
  nb::class_<TestPool>(m, "CompletionPool")
      .def(nb::init<std::size_t, double, double>(), "threads_max"_a = defaults.threads_max,
           "idle_s"_a = ToSeconds(defaults.idle), "shutdown_s"_a = ToSeconds(defaults.shutdown))
      .def("run", &TestPool::Run, "task"_a)
      .def("release", &TestPool::Release, "task"_a)
      .def("close", &TestPool::Close)
      .def("begun", &TestPool::Begun, "count"_a)
      .def("ended", &TestPool::Ended, "count"_a)
      .def("counters", &TestPool::Counters);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
