// The leaves of a call, seen as one bucket of bytes. Nothing is concatenated: a range inside one
// leaf is read where it lies, only a range across leaves is gathered.
//
// A leaf may have this rank's values elsewhere than its result, and they are not copied as a whole:
// a segment is read from the values until it is written.

#ifndef FFI_PROTOCOL_BUCKET_BUCKET_VIEW_H_
#define FFI_PROTOCOL_BUCKET_BUCKET_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Copies the values of leaves to the place of their results, where they lie elsewhere.
void MoveToPlace(std::span<Leaf> leaves, std::size_t element_bytes);

class BucketView {
 public:
  BucketView() = default;
  // The values are in place.
  BucketView(std::span<const Leaf> leaves, std::size_t element_bytes);
  // The values may lie elsewhere; ranges are then segments of `layout`, which outlives the view.
  BucketView(std::span<const Leaf> leaves, std::size_t element_bytes, const BucketLayout& layout);

  std::uint64_t bytes() const { return bytes_; }

  // The bytes of the range: in place if they lie in one leaf, else gathered into `scratch`, which
  // must hold them.
  std::span<const std::byte> Read(ByteRange range, std::span<std::byte> scratch) const;
  void Write(std::uint64_t offset, std::span<const std::byte> bytes);
  void Zero(ByteRange range);

  // Copies the segments that were not written: the values are in place from now on.
  void Settle();

 private:
  struct Piece {
    const std::byte* from;
    std::byte* data;
    std::uint64_t offset;  // offset in the bucket
    std::uint64_t bytes;
  };
  // Calls `visit(piece, offset in the piece, bytes)` for each piece of the range, in order.
  template <typename Visit>
  void ForEachPiece(ByteRange range, Visit visit) const;
  void RecordWrite(std::uint64_t offset);

  std::vector<Piece> pieces_;  // ordered by offset, none of them empty
  std::uint64_t bytes_ = 0;
  const BucketLayout* layout_ = nullptr;  // null: the values are in place
  Bitmap written_;                        // segments
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_BUCKET_VIEW_H_
