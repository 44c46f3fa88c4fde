// The leaves of a call, seen as one bucket of bytes. Nothing is concatenated: a range inside one
// leaf is read where it lies, only a range across leaves is gathered.

#ifndef FFI_PROTOCOL_BUCKET_BUCKET_VIEW_H_
#define FFI_PROTOCOL_BUCKET_BUCKET_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

class BucketView {
 public:
  BucketView() = default;
  BucketView(std::span<const Leaf> leaves, std::size_t element_bytes);

  std::uint64_t bytes() const { return bytes_; }

  // The bytes of the range: in place if they lie in one leaf, else gathered into `scratch`, which
  // must hold them.
  std::span<const std::byte> Read(ByteRange range, std::span<std::byte> scratch) const;
  void Write(std::uint64_t offset, std::span<const std::byte> bytes) const;
  void Zero(ByteRange range) const;

 private:
  struct Piece {
    std::byte* data;
    std::uint64_t offset;  // offset in the bucket
    std::uint64_t bytes;
  };
  // Calls `visit(bytes in the leaf)` for each piece of the range, in order.
  template <typename Visit>
  void ForEachPiece(ByteRange range, Visit visit) const;

  std::vector<Piece> pieces_;  // ordered by offset, none of them empty
  std::uint64_t bytes_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_BUCKET_VIEW_H_
