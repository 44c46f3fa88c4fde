// A fixed-size set of indices that keeps its count.

#ifndef FFI_BASE_BITMAP_H_
#define FFI_BASE_BITMAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ffi/base/check.h"

namespace optireduce {

class Bitmap {
 public:
  explicit Bitmap(std::size_t size = 0) : size_(size), words_((size + 63) / 64) {}

  // True if the index was absent before.
  bool Insert(std::size_t index) {
    OR_CHECK(index < size_);
    const std::uint64_t bit = std::uint64_t{1} << (index % 64);
    if (words_[index / 64] & bit) return false;
    words_[index / 64] |= bit;
    ++count_;
    return true;
  }
  // True if the index was present.
  bool Erase(std::size_t index) {
    if (!Contains(index)) return false;
    words_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
    --count_;
    return true;
  }
  bool Contains(std::size_t index) const {
    OR_CHECK(index < size_);
    return (words_[index / 64] >> (index % 64)) & 1;
  }

  std::size_t size() const { return size_; }
  std::size_t count() const { return count_; }
  bool full() const { return count_ == size_; }

 private:
  std::size_t size_;
  std::size_t count_ = 0;
  std::vector<std::uint64_t> words_;
};

}  // namespace optireduce

#endif  // FFI_BASE_BITMAP_H_
