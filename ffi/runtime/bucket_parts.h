// How the calls of a process spread over its lanes: a large bucket is cut into one contiguous part
// per lane, so that several flows and several cores carry it; a small one stays whole.

#ifndef FFI_RUNTIME_BUCKET_PARTS_H_
#define FFI_RUNTIME_BUCKET_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Buckets of at least this many bytes are cut when there are several lanes.
// Chosen: a lane sends 1 MiB in about the time that waking another lane takes to pay off.
inline constexpr std::size_t kCutBytesMin = std::size_t{1} << 20;

struct BucketPart {
  std::size_t lane = 0;
  Submission submission;
};

// The parts of a call, at most one per lane, together all its elements in order. The same on every
// rank, because only name, size and number of lanes decide. `lanes` is at least 1.
std::vector<BucketPart> CutBucket(const Submission& submission, std::size_t lanes);

// The outcome of a call from those of its parts. Fractions are weighted by elements; the slowest
// rank is that of the part which took longest; alive are those that are for all parts; the first
// error is the call's.
class PartOutcomes {
 public:
  void Add(const Status& status, const CallStats& stats, std::uint64_t elements);
  const Status& status() const { return status_; }
  CallStats stats() const;

 private:
  Status status_;
  CallStats stats_;  // fractions: sums weighted by elements
  std::uint64_t elements_ = 0;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_BUCKET_PARTS_H_
