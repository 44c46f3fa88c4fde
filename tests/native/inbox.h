// Values passed from other threads to the test.

#ifndef TESTS_NATIVE_INBOX_H_
#define TESTS_NATIVE_INBOX_H_

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace optireduce::testing {

// Thread-safe. Shared with the producers, which may outlive the test.
template <typename T>
class Inbox {
 public:
  void Put(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  // All values, once there are this many.
  std::vector<T> Wait(std::size_t count) {
    const nanobind::gil_scoped_release release;
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kHangs, [&] { return values_.size() >= count; })) {
      throw std::runtime_error("what the test waits for did not come within a minute");
    }
    return values_;
  }
  std::vector<T> Now() const {
    const std::lock_guard lock(mutex_);
    return values_;
  }
  void Clear() {
    std::vector<T> old;
    const std::lock_guard lock(mutex_);
    old.swap(values_);
  }

 private:
  // Chosen: never reached, even on a busy machine.
  static constexpr std::chrono::minutes kHangs{1};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> values_;
};

}  // namespace optireduce::testing

#endif  // TESTS_NATIVE_INBOX_H_
