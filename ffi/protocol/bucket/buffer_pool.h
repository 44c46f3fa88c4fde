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

// A piece of memory, given back to its pool at the end. Contents are whatever was there before.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }

 private:
  friend class BufferPool;
  BufferPool* pool_ = nullptr;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;      // asked for
  std::size_t capacity_ = 0;  // allocated
};

class BufferPool {
 public:
  Buffer Take(std::size_t bytes) {
    Buffer buffer;
    buffer.pool_ = this;
    buffer.size_ = bytes;
    // The smallest that fits, unless it wastes as much again.
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes || it->second / 2 > bytes) continue;
      if (best == free_.end() || it->second < best->second) best = it;
    }
    if (best != free_.end()) {
      buffer.memory_ = std::move(best->first);
      buffer.capacity_ = best->second;
      free_bytes_ -= best->second;
      free_.erase(best);
    } else {
      buffer.memory_.reset(new std::byte[bytes]);
      buffer.capacity_ = bytes;
    }
    used_bytes_ += bytes;
    used_bytes_peak_ = std::max(used_bytes_peak_, used_bytes_);
    return buffer;
  }

  std::size_t used_bytes() const { return used_bytes_; }

 private:
  friend class Buffer;
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

inline Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

inline Buffer::~Buffer() {
  if (memory_) pool_->GiveBack(std::move(memory_), size_, capacity_);
}

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_BUFFER_POOL_H_
