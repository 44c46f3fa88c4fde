// Encoding of a set of ranks: a length in bytes, then a bitmap up to the highest rank.

#ifndef FFI_PROTOCOL_WIRE_RANK_BITMAP_H_
#define FFI_PROTOCOL_WIRE_RANK_BITMAP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/bytes.h"
#include "ffi/base/ids.h"

namespace optireduce {

// `ranks` must ascend.
inline void WriteRanks(ByteWriter& writer, std::span<const Rank> ranks) {
  const std::size_t bytes = ranks.empty() ? 0 : ranks.back().index() / 8 + 1;
  writer.Write(static_cast<std::uint16_t>(bytes));
  auto rank = ranks.begin();
  for (std::size_t i = 0; i < bytes; ++i) {
    std::uint8_t bits = 0;
    for (; rank != ranks.end() && rank->index() / 8 == i; ++rank) {
      bits = static_cast<std::uint8_t>(bits | 1u << (rank->index() % 8));
    }
    writer.Write(bits);
  }
}

// Ascending; nothing if a rank is not below `world_size`. The caller checks the reader afterwards.
inline std::optional<std::vector<Rank>> ReadRanks(ByteReader& reader, std::uint16_t world_size) {
  const auto bitmap = reader.ReadBytes(reader.Read<std::uint16_t>());
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < bitmap.size() * 8; ++i) {
    if (!((std::to_integer<unsigned>(bitmap[i / 8]) >> (i % 8)) & 1)) continue;
    if (i >= world_size) return std::nullopt;
    ranks.emplace_back(static_cast<std::uint16_t>(i));
  }
  return ranks;
}

}  // namespace optireduce

#endif  // FFI_PROTOCOL_WIRE_RANK_BITMAP_H_
