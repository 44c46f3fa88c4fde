// A double-ended queue that grows by doubling and owns no memory before its first element. A
// std::deque allocates more than half a kilobyte at once, which adds up with several queues for
// each peer.

#ifndef FFI_BASE_RING_H_
#define FFI_BASE_RING_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "ffi/base/check.h"

namespace optireduce {

template <typename T>
class Ring {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }

  // Counted from the front.
  T& operator[](std::size_t index) { return slots_[Slot(index)]; }
  const T& operator[](std::size_t index) const { return slots_[Slot(index)]; }
  T& front() { return slots_[head_]; }

  void push_back(T value) {
    if (size_ == slots_.size()) Grow();
    slots_[Slot(size_++)] = std::move(value);
  }
  void push_front(T value) {
    if (size_ == slots_.size()) Grow();
    head_ = Slot(slots_.size() - 1);
    ++size_;
    slots_[head_] = std::move(value);
  }
  void pop_front() {
    OR_CHECK(size_ > 0);
    head_ = Slot(1);
    --size_;
  }
  void clear() { size_ = 0; }

  template <typename Predicate>
  bool AnyOf(Predicate predicate) const {
    for (std::size_t i = 0; i < size_; ++i) {
      if (predicate((*this)[i])) return true;
    }
    return false;
  }

 private:
  // Chosen: most queues never have more elements.
  static constexpr std::size_t kFirstSlots = 4;

  // The number of slots is a power of two.
  std::size_t Slot(std::size_t index) const { return (head_ + index) & (slots_.size() - 1); }
  void Grow() {
    std::rotate(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(head_), slots_.end());
    head_ = 0;
    slots_.resize(std::max(2 * slots_.size(), kFirstSlots));
  }

  std::vector<T> slots_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace optireduce

#endif  // FFI_BASE_RING_H_
