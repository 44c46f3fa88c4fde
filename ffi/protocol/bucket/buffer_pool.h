// Memory for calls, used again from call to call: a fresh allocation of a bucket costs a page fault
// every 4 KiB, a tenth of the call. Keeps at most as much as was in use at one time.

#ifndef FFI_PROTOCOL_BUCKET_BUFFER_POOL_H_
#define FFI_PROTOCOL_BUCKET_BUFFER_POOL_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace optireduce {

class BufferPool;

// Gives memory back to its pool.
struct BufferReturn {
  BufferPool* pool = nullptr;
  std::size_t size = 0;      // asked for
  std::size_t capacity = 0;  // allocated
  void operator()(std::byte* memory) const;
};

// A piece of memory, given back to its pool at the end. Contents are whatever was there before.
class Buffer {
 public:
  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return memory_ ? memory_.get_deleter().size : 0; }

 private:
  friend class BufferPool;
  std::unique_ptr<std::byte[], BufferReturn> memory_;
};

class BufferPool {
 public:
  Buffer Take(std::size_t bytes) {
    // The smallest that fits, unless it wastes as much again.
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes || it->second / 2 > bytes) continue;
      if (best == free_.end() || it->second < best->second) best = it;
    }
    std::byte* memory = nullptr;
    std::size_t capacity = bytes;
    if (best != free_.end()) {
      memory = best->first.release();
      capacity = best->second;
      free_bytes_ -= capacity;
      free_.erase(best);
    } else {
      memory = new std::byte[bytes];
    }
    used_bytes_ += bytes;
    used_bytes_peak_ = std::max(used_bytes_peak_, used_bytes_);
    Buffer buffer;
    buffer.memory_ = {memory, {.pool = this, .size = bytes, .capacity = capacity}};
    return buffer;
  }

  std::size_t used_bytes() const { return used_bytes_; }

 private:
  friend struct BufferReturn;
  void GiveBack(std::unique_ptr<std::byte[]> memory, std::size_t size, std::size_t capacity) {
    used_bytes_ -= size;
    if (free_bytes_ + capacity > used_bytes_peak_) return;
    free_bytes_ += capacity;
    free_.emplace_back(std::move(memory), capacity);
  }

  std::vector<std::pair<std::unique_ptr<std::byte[]>, std::size_t>> free_;
  std::size_t free_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t used_bytes_peak_ = 0;
};

inline void BufferReturn::operator()(std::byte* memory) const {
  pool->GiveBack(std::unique_ptr<std::byte[]>(memory), size, capacity);
}

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_BUFFER_POOL_H_
