#include "ffi/runtime/guarded_membership.h"

namespace optireduce {

MembershipFacts GuardedMembership::facts() const {
  // Read first: a reader that sees the change sees the other facts too.
  const std::uint32_t changes = changes_.load();
  return {.timeout = Instant(Duration(timeout_.load())),
          .changes = changes,
          .stuck = stuck_.load(),
          .in_use = in_use_.load()};
}

void GuardedMembership::Unlock() {
  const MembershipFacts now = Facts();
  timeout_ = now.timeout.time_since_epoch().count();
  stuck_ = now.stuck;
  in_use_ = now.in_use;
  // Written last, see facts().
  const bool changed = changes_.exchange(now.changes) != now.changes;
  mutex_.unlock();
  if (!changed) return;
  for (const std::function<void()>& wake : wakes_) wake();
}

}  // namespace optireduce
