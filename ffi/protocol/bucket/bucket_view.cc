#include "ffi/protocol/bucket/bucket_view.h"

#include <algorithm>
#include <cstring>

#include "ffi/base/check.h"

namespace optireduce {

BucketView::BucketView(std::span<const Leaf> leaves, std::size_t element_bytes) {
  for (const Leaf& leaf : leaves) {
    if (leaf.elements == 0) continue;
    const std::uint64_t bytes = leaf.elements * element_bytes;
    pieces_.push_back({.data = leaf.data, .offset = bytes_, .bytes = bytes});
    bytes_ += bytes;
  }
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
    visit(std::span(piece->data + within, bytes));
    range = {.offset = range.offset + bytes, .bytes = range.bytes - bytes};
  }
}

std::span<const std::byte> BucketView::Read(ByteRange range, std::span<std::byte> scratch) const {
  const std::byte* in_place = nullptr;
  std::size_t gathered = 0;
  ForEachPiece(range, [&](std::span<std::byte> bytes) {
    if (bytes.size() == range.bytes) {
      in_place = bytes.data();
      return;
    }
    OR_CHECK(gathered + bytes.size() <= scratch.size());
    std::memcpy(scratch.data() + gathered, bytes.data(), bytes.size());
    gathered += bytes.size();
  });
  return {in_place != nullptr ? in_place : scratch.data(), range.bytes};
}

void BucketView::Write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  ForEachPiece({.offset = offset, .bytes = bytes.size()}, [&](std::span<std::byte> leaf) {
    std::memcpy(leaf.data(), bytes.data(), leaf.size());
    bytes = bytes.subspan(leaf.size());
  });
}

void BucketView::Zero(ByteRange range) const {
  ForEachPiece(range, [](std::span<std::byte> leaf) { std::memset(leaf.data(), 0, leaf.size()); });
}

}  // namespace optireduce
