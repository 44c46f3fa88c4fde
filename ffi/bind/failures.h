// The last calls of the process that ended with an error, as values: XLA gives a program their
// messages only.

#ifndef FFI_BIND_FAILURES_H_
#define FFI_BIND_FAILURES_H_

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/runtime/device_rendezvous.h"

namespace optireduce {

struct Failure {
  Status status;  // not ok
  std::string collective;
  Sequence sequence;
  Duration waited{};
};

// Thread-safe.
class Failures {
 public:
  // Adds the outcome of the call, if it is an error, before `call.done` passes it on.
  void Watch(DeviceCall& call) {
    call.done = [this, name = call.key, done = std::move(call.done)](const DeviceResult& result) {
      if (!result.status.ok()) {
        Add({.status = result.status,
             .collective = name,
             .sequence = result.sequence,
             .waited = result.stats.elapsed});
      }
      done(result);
    };
  }
  // Oldest first.
  std::vector<Failure> All() const {
    const std::lock_guard lock(mutex_);
    return {failures_.begin(), failures_.end()};
  }

 private:
  // Chosen: more calls than programs have under way on all devices of a process.
  static constexpr std::size_t kFailuresMax = 256;

  void Add(Failure failure) {
    const std::lock_guard lock(mutex_);
    if (failures_.size() == kFailuresMax) failures_.pop_front();
    failures_.push_back(std::move(failure));
  }

  mutable std::mutex mutex_;
  std::deque<Failure> failures_;
};

}  // namespace optireduce

#endif  // FFI_BIND_FAILURES_H_
