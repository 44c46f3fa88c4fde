#include "ffi/protocol/bucket/bucket_view.h"

#include <algorithm>
#include <cstring>

#include "ffi/base/check.h"

namespace optireduce {

void MoveToPlace(std::span<Leaf> leaves, std::size_t element_bytes) {
  for (Leaf& leaf : leaves) {
    const std::uint64_t bytes = leaf.elements * element_bytes;
    if (leaf.from != nullptr && bytes > 0) std::memcpy(leaf.data, leaf.from, bytes);
    leaf.from = nullptr;
  }
}

BucketView::BucketView(std::span<const Leaf> leaves, std::size_t element_bytes) {
  for (const Leaf& leaf : leaves) {
    if (leaf.elements == 0) continue;
    const std::uint64_t bytes = leaf.elements * element_bytes;
    pieces_.push_back({.from = leaf.values(), .data = leaf.data, .offset = bytes_, .bytes = bytes});
    bytes_ += bytes;
  }
}

BucketView::BucketView(std::span<const Leaf> leaves, std::size_t element_bytes,
                       const BucketLayout& layout)
    : BucketView(leaves, element_bytes) {
  OR_CHECK(bytes_ == layout.bytes());
  if (std::ranges::all_of(leaves, [](const Leaf& leaf) { return leaf.from == nullptr; })) return;
  layout_ = &layout;
  written_ = Bitmap(layout.segments());
}

template <typename Visit>
void BucketView::ForEachPiece(ByteRange range, Visit visit) const {
  OR_CHECK(range.offset + range.bytes <= bytes_);
  if (range.bytes == 0) return;
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), range.offset,
                                [](std::uint64_t at, const Piece& p) { return at < p.offset; }) -
               1;
  for (; range.bytes > 0; ++piece) {
    const std::uint64_t within = range.offset - piece->offset;
    const std::uint64_t bytes = std::min(range.bytes, piece->bytes - within);
    visit(*piece, within, bytes);
    range = {.offset = range.offset + bytes, .bytes = range.bytes - bytes};
  }
}

std::span<const std::byte> BucketView::Read(ByteRange range, std::span<std::byte> scratch) const {
  const std::byte* in_place = nullptr;
  std::size_t gathered = 0;
  const bool written = layout_ == nullptr || range.bytes == 0 ||
                       written_.Contains(layout_->SegmentAt(range.offset).index());
  ForEachPiece(range, [&](const Piece& piece, std::uint64_t within, std::uint64_t bytes) {
    const std::byte* const values = (written ? piece.data : piece.from) + within;
    if (bytes == range.bytes) {
      in_place = values;
      return;
    }
    OR_CHECK(gathered + bytes <= scratch.size());
    std::memcpy(scratch.data() + gathered, values, bytes);
    gathered += bytes;
  });
  return {in_place != nullptr ? in_place : scratch.data(), range.bytes};
}

void BucketView::RecordWrite(std::uint64_t offset) {
  if (layout_ != nullptr) written_.Insert(layout_->SegmentAt(offset).index());
}

void BucketView::Write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!bytes.empty()) RecordWrite(offset);
  ForEachPiece({.offset = offset, .bytes = bytes.size()},
               [&](const Piece& piece, std::uint64_t within, std::uint64_t size) {
                 std::memcpy(piece.data + within, bytes.data(), size);
                 bytes = bytes.subspan(size);
               });
}

void BucketView::Zero(ByteRange range) {
  if (range.bytes > 0) RecordWrite(range.offset);
  ForEachPiece(range, [](const Piece& piece, std::uint64_t within, std::uint64_t bytes) {
    std::memset(piece.data + within, 0, bytes);
  });
}

void BucketView::Settle() {
  if (layout_ == nullptr) return;
  for (const SegmentIndex segment : layout_->Segments()) {
    if (written_.Contains(segment.index())) continue;
    ForEachPiece(layout_->Segment(segment),
                 [](const Piece& piece, std::uint64_t within, std::uint64_t bytes) {
                   std::memcpy(piece.data + within, piece.from + within, bytes);
                 });
  }
  layout_ = nullptr;
}

}  // namespace optireduce
