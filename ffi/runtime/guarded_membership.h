// The membership of a process with several lanes: guarded by one mutex; a change that concerns all
// lanes wakes them.

#ifndef FFI_RUNTIME_GUARDED_MEMBERSHIP_H_
#define FFI_RUNTIME_GUARDED_MEMBERSHIP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "ffi/base/time.h"
#include "ffi/protocol/membership/shared_membership.h"

namespace optireduce {

// Thread-safe. Datagrams take no lock while no rank is suspected: the facts are atomic.
class GuardedMembership final : public SharedMembership {
 public:
  using SharedMembership::SharedMembership;

  // Adds a function that wakes a lane, callable by any thread while a lane runs. To be called
  // before the lanes start.
  void AddLane(std::function<void()> wake) { wakes_.push_back(std::move(wake)); }

  MembershipFacts facts() const override;

 private:
  void Lock() override { mutex_.lock(); }
  void Unlock() override;

  std::mutex mutex_;
  // Written under the mutex. Each fact is recent enough by itself; facts that must be consistent
  // with each other are read from the open membership.
  std::atomic<Instant::rep> timeout_{kNever.time_since_epoch().count()};
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<bool> stuck_{false};
  std::atomic<bool> in_use_{false};
  std::vector<std::function<void()>> wakes_;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_GUARDED_MEMBERSHIP_H_
