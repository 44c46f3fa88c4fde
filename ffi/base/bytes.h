// Bounded little-endian reading and writing. An access beyond the end is not performed, and is
// remembered: callers check `ok()` once, at the end.

#ifndef FFI_BASE_BYTES_H_
#define FFI_BASE_BYTES_H_

#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace optireduce {

// Consecutive bytes of a message that may lie in separate buffers.
using Pieces = std::span<const std::span<const std::byte>>;

inline std::size_t SizeOf(Pieces pieces) {
  std::size_t bytes = 0;
  for (const std::span<const std::byte> piece : pieces) bytes += piece.size();
  return bytes;
}

// Replaces the contents of `joined` by the concatenated pieces.
inline void Join(Pieces pieces, std::vector<std::byte>& joined) {
  joined.clear();
  for (const std::span<const std::byte> piece : pieces) {
    joined.insert(joined.end(), piece.begin(), piece.end());
  }
}

class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> buffer) : buffer_(buffer) {}

  template <std::unsigned_integral T>
  void Write(T value, std::size_t bytes = sizeof(T)) {
    if (!Reserve(bytes)) return;
    for (std::size_t i = 0; i < bytes; ++i) {
      buffer_[position_ - bytes + i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
    }
  }
  void Write(std::span<const std::byte> bytes) {
    if (!Reserve(bytes.size()) || bytes.empty()) return;
    std::memcpy(&buffer_[position_ - bytes.size()], bytes.data(), bytes.size());
  }
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text))); }

  bool ok() const { return ok_; }
  std::size_t size() const { return position_; }

 private:
  bool Reserve(std::size_t bytes) {
    ok_ = ok_ && bytes <= buffer_.size() - position_;
    if (ok_) position_ += bytes;
    return ok_;
  }

  std::span<std::byte> buffer_;
  std::size_t position_ = 0;
  bool ok_ = true;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> buffer) : buffer_(buffer) {}

  template <std::unsigned_integral T>
  T Read(std::size_t bytes = sizeof(T)) {
    T value = 0;
    const std::span<const std::byte> raw = ReadBytes(bytes);
    for (std::size_t i = 0; i < raw.size(); ++i) {
      value = static_cast<T>(value | (static_cast<T>(raw[i]) << (8 * i)));
    }
    return value;
  }
  // Empty if fewer bytes are left.
  std::span<const std::byte> ReadBytes(std::size_t bytes) {
    ok_ = ok_ && bytes <= remaining();
    if (!ok_) return {};
    position_ += bytes;
    return buffer_.subspan(position_ - bytes, bytes);
  }

  bool ok() const { return ok_; }
  std::size_t remaining() const { return buffer_.size() - position_; }

 private:
  std::span<const std::byte> buffer_;
  std::size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace optireduce

#endif  // FFI_BASE_BYTES_H_
