// The calls of the others that a rank has skipped (lifecycle/catch_up.h), which the endpoints of
// its lanes share.
//
// The program of a rank counts its calls of a bucket: their positions. The number of a call in the
// session is its position plus the calls of the bucket that the rank has skipped. Each bucket skips
// by itself, only up to calls that others have made. If one bucket skipped for another one, two
// ranks could raise the numbers of each other without end.

#ifndef FFI_PROTOCOL_MEMBERSHIP_SKIPPED_CALLS_H_
#define FFI_PROTOCOL_MEMBERSHIP_SKIPPED_CALLS_H_

#include <cstdint>
#include <map>

#include "ffi/base/ids.h"

namespace optireduce {

class SkippedCalls {
 public:
  // The calls of the bucket that were skipped so far.
  std::uint32_t Of(CollectiveId bucket) const {
    const auto at = buckets_.find(bucket);
    return at == buckets_.end() ? 0 : at->second;
  }
  // The call at the position begins under the number. Returns the number of calls skipped before
  // it.
  std::uint32_t Begin(CollectiveId bucket, Sequence position, Sequence number) {
    std::uint32_t& skipped = buckets_[bucket];
    const std::uint32_t usual = position.value() + skipped;
    // Another lane may have skipped more meanwhile.
    if (number.value() <= usual) return 0;
    skipped += number.value() - usual;
    return number.value() - usual;
  }

 private:
  std::map<CollectiveId, std::uint32_t> buckets_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_MEMBERSHIP_SKIPPED_CALLS_H_
