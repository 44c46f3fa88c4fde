// Slices: ranks that share an interconnect of their own, over which XLA reduces, such as the hosts
// of a TPU slice. A rank that is gone takes the collectives of its slice with it, so the ranks of a
// slice are members of the session together.

#ifndef FFI_PROTOCOL_MEMBERSHIP_SLICES_H_
#define FFI_PROTOCOL_MEMBERSHIP_SLICES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/ids.h"

namespace optireduce {

class Slices {
 public:
  // Consecutive ranks form a slice; with 1 each rank is one.
  explicit Slices(std::uint16_t ranks_per_slice) : ranks_per_slice_(ranks_per_slice) {}

  std::uint16_t ranks_per_slice() const { return ranks_per_slice_; }
  bool AreTogether(Rank a, Rank b) const {
    return a.value() / ranks_per_slice_ == b.value() / ranks_per_slice_;
  }
  // All ranks of a slice, ascending.
  std::vector<Rank> SliceOf(Rank rank) const {
    std::vector<Rank> slice;
    const int first = rank.value() / ranks_per_slice_ * ranks_per_slice_;
    for (int r = first; r < first + ranks_per_slice_; ++r) {
      slice.emplace_back(static_cast<std::uint16_t>(r));
    }
    return slice;
  }
  // The given ranks, which ascend, whose slice is there as a whole.
  std::vector<Rank> WholeAmong(std::span<const Rank> ranks) const {
    std::vector<Rank> whole;
    for (auto at = ranks.begin(); at != ranks.end();) {
      const auto end =
          std::find_if(at, ranks.end(), [&](Rank rank) { return !AreTogether(*at, rank); });
      if (end - at == ranks_per_slice_) whole.insert(whole.end(), at, end);
      at = end;
    }
    return whole;
  }

 private:
  std::uint16_t ranks_per_slice_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_MEMBERSHIP_SLICES_H_
