// The parts of a call on the lanes of a process: a large bucket is cut into one contiguous part
// per lane, so that several flows and several cores carry it; a small one stays whole.

#ifndef FFI_PROTOCOL_BUCKET_BUCKET_PARTS_H_
#define FFI_PROTOCOL_BUCKET_BUCKET_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

struct BucketPart {
  std::size_t lane = 0;
  Submission submission;
};

// The parts of a call, at most one per lane, together all its elements in order; one of less than
// `cut_bytes_min` is not cut. With one stage each shard is cut: its owner has the same part of it
// on each lane. The cut is equal on every rank, because only name, size and number of lanes decide.
// Parts differ in their elements only, see BucketOf. `lanes` is at least 1.
std::vector<BucketPart> CutBucket(const Submission& submission, std::size_t lanes,
                                  std::size_t cut_bytes_min);

// The outcome of a call from those of its parts. Fractions are weighted by the elements that they
// are of; the slowest rank is that of the part which took longest; members are the same for all
// parts; the first error is the call's.
class PartOutcomes {
 public:
  void Add(const Status& status, const CallStats& stats, std::uint64_t elements);
  const Status& status() const { return status_; }
  CallStats stats() const;

 private:
  Status status_;
  CallStats stats_;  // fractions: sums weighted by elements
  std::uint64_t elements_ = 0;
  double results_ = 0;  // elements that are there
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_BUCKET_PARTS_H_
