// An array of instants that finds the early ones without a scan of the others.

#ifndef FFI_BASE_MIN_TREE_H_
#define FFI_BASE_MIN_TREE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ffi/base/time.h"

namespace optireduce {

class MinTree {
 public:
  // A tree of `size` instants that are all `at`.
  MinTree(std::size_t size, Instant at) : size_(size) {
    do {
      size = (size + kFanOut - 1) / kFanOut;
      levels_.emplace_back(size * kFanOut, kNever);
    } while (size > 1);
    for (std::size_t i = 0; i < size_; ++i) Set(i, at);
  }

  Instant operator[](std::size_t index) const { return levels_[0][index]; }

  void Set(std::size_t index, Instant at) {
    for (std::vector<Instant>& level : levels_) {
      if (level[index] == at) return;
      level[index] = at;
      index /= kFanOut;
      const Instant* const group = &level[index * kFanOut];
      at = *std::min_element(group, group + kFanOut);
    }
  }

  // The first index from `from` on whose instant is before `at`, or the size if there is none.
  std::size_t FirstBefore(Instant at, std::size_t from = 0) const {
    std::size_t level = 0;
    for (std::size_t index = from;;) {
      const std::vector<Instant>& instants = levels_[level];
      // Scans the rest of the group, then continues at its parent, or descends to the early
      // instant.
      const std::size_t end = (index / kFanOut + 1) * kFanOut;
      if (index >= instants.size()) return size_;
      while (index < end && instants[index] >= at) ++index;
      if (index < end && level == 0) return index;
      if (index < end) {
        --level;
        index *= kFanOut;
      } else if (++level == levels_.size()) {
        return size_;
      } else {
        index /= kFanOut;
      }
    }
  }

 private:
  // Chosen: a group fills two cache lines, and three levels hold a thousand instants.
  static constexpr std::size_t kFanOut = 16;

  std::size_t size_;
  // The instants, then the minimum of each group, then the minimum of each group of these, and so
  // on; kNever as padding.
  std::vector<std::vector<Instant>> levels_;
};

}  // namespace optireduce

#endif  // FFI_BASE_MIN_TREE_H_
