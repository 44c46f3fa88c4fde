// The calls of the others that a rank has skipped (LagPolicy::kCatchUp), which the endpoints of its
// lanes share.
//
// The program of a rank counts its calls of a bucket: their positions. The number of a call in the
// session is its position plus the calls that the rank has skipped. Buckets that a program calls
// equally often, those of one step, skip calls together: otherwise one rank could be ahead in one
// bucket and another in the next, and each would wait for the other.

#ifndef FFI_PROTOCOL_SESSION_SKIPPED_CALLS_H_
#define FFI_PROTOCOL_SESSION_SKIPPED_CALLS_H_

#include <algorithm>
#include <cstdint>
#include <map>

#include "ffi/base/ids.h"

namespace optireduce {

class SkippedCalls {
 public:
  // The calls of the bucket that were skipped so far.
  std::uint32_t Of(CollectiveId bucket) const {
    const auto at = buckets_.find(bucket);
    return at == buckets_.end() ? 0 : at->second.skipped;
  }
  // The program of the rank makes the call.
  void Call(CollectiveId bucket, Sequence position) {
    Bucket& called = buckets_[bucket];
    called.position = std::max(called.position, position);
  }
  // The call at the position begins under the number. Returns the calls that it skips, which the
  // other buckets of its step skip, too. The bucket was called.
  std::uint32_t Begin(CollectiveId bucket, Sequence position, Sequence number) {
    const Bucket& begun = buckets_.at(bucket);
    const std::uint32_t usual = position.value() + begun.skipped;
    // Another lane may have skipped more meanwhile.
    if (number.value() <= usual) return 0;
    const std::uint32_t more = number.value() - usual;
    for (auto& [id, other] : buckets_) {
      if (&other == &begun || InOneStep(other, begun)) other.skipped += more;
    }
    return more;
  }

 private:
  struct Bucket {
    Sequence position{};  // of the newest call of the program
    std::uint32_t skipped = 0;
  };
  static bool InOneStep(const Bucket& a, const Bucket& b) {
    const std::uint32_t lower = std::min(a.position, b.position).value();
    return std::max(a.position, b.position).value() - lower <= 1;
  }

  std::map<CollectiveId, Bucket> buckets_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_SKIPPED_CALLS_H_
