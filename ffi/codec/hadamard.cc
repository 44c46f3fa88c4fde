// Theory of operation. A bucket is a matrix [1024, blocks] whose columns are transformed in two
// passes over the memory instead of ten. The first pass combines rows 0 to 31, rows 32 to 63, and
// so on; the second combines rows that are 32 apart. A pass makes five steps of sums and
// differences on 32 entries of a column, in registers as far as there are any, for as many adjacent
// columns as a vector holds. It reads 32 rows in parallel, a pattern that the hardware prefetcher
// follows. (One pass over tiles of a few columns would read from 1,024 places at once, and is 1.2
// to 3 times slower.) Signs and scale are applied where an entry is read first or written last.

#include "ffi/codec/hadamard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/codec/dispatch.h"

namespace optireduce {
namespace {

// Rows combined in a pass: the square root of a block.
constexpr std::size_t kRows = 32;
static_assert(kRows * kRows == kHadamardBlock);
using Eight = std::make_index_sequence<8>;

// `value`, with the sign that `key` chooses for the entry at `position`.
template <typename T>
OR_INLINE T Flip(T value, std::uint32_t key, std::uint32_t position) {
  // Source: _flip in hadamard.py.
  std::uint32_t mixed = position ^ key;
  mixed = (mixed ^ (mixed >> 16)) * 0x21F0'AAADu;
  mixed = (mixed ^ (mixed >> 15) ^ (key * 0x9E37'79B9u)) * 0xD35A'2D97u;
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  const Bits sign = static_cast<Bits>(mixed >> 31) << (8 * sizeof(T) - 1);
  return std::bit_cast<T>(std::bit_cast<Bits>(value) ^ sign);
}

// Sums and differences of values that are kDistance apart: of pair I among those that the step has
// from row `first` on.
template <std::size_t kDistance, typename T, std::size_t... I>
OR_INLINE void Step(std::index_sequence<I...> /*pairs*/, std::size_t first,
                    std::array<T, kRows>& values) {
  const auto combine = [&values](std::size_t i) __attribute__((always_inline)) {
    const T a = values[i];
    const T b = values[i + kDistance];
    values[i] = a + b;
    values[i + kDistance] = a - b;
  };
  (combine(first + I / kDistance * 2 * kDistance + I % kDistance), ...);
}

// Combines 32 rows with each other. `load` reads, and `store` writes, the element (row, column).
// Three steps on eight adjacent rows, then two on four rows that are eight apart: so many values,
// and no more, are in registers at a time.
template <typename T, typename Load, typename Store, std::size_t... I>
OR_INLINE void CombineRows(std::index_sequence<I...> /*eight*/, std::size_t columns, Load load,
                           Store store) {
  constexpr std::make_index_sequence<4> kPairsOfEight;
  constexpr std::index_sequence<0, 8> kPairsOfFour;
  OR_INDEPENDENT_TURNS
  for (std::size_t column = 0; column < columns; ++column) {
    std::array<T, kRows> values;
    const auto load_eight = [&](std::size_t first) __attribute__((always_inline)) {
      ((values[first + I] = load(first + I, column)), ...);
      Step<1>(kPairsOfEight, first, values);
      Step<2>(kPairsOfEight, first, values);
      Step<4>(kPairsOfEight, first, values);
    };
    const auto store_four = [&](std::size_t first) __attribute__((always_inline)) {
      Step<8>(kPairsOfFour, first, values);
      Step<16>(kPairsOfFour, first, values);
      store(first, column, values[first]);
      store(first + 8, column, values[first + 8]);
      store(first + 16, column, values[first + 16]);
      store(first + 24, column, values[first + 24]);
    };
    load_eight(0);
    load_eight(8);
    load_eight(16);
    load_eight(24);
    (store_four(I), ...);
  }
}

// Transforms full blocks. `kEncode` changes the signs before the transform, otherwise after it.
template <bool kEncode, typename T>
OR_INLINE void RotateBlocks(T* bucket, std::size_t blocks, std::uint32_t key, T scale) {
  const auto signed_at = [key](T value, std::size_t position) __attribute__((always_inline)) {
    return Flip(value, key, static_cast<std::uint32_t>(position));
  };
  // The scale is applied first, so that sums of large entries do not overflow.
  for (std::size_t part = 0; part < kRows; ++part) {
    const std::size_t begin = part * kRows * blocks;
    CombineRows<T>(
        Eight(), blocks,
        [=](std::size_t row, std::size_t column) __attribute__((always_inline)) {
          const std::size_t at = begin + row * blocks + column;
          const T value = bucket[at] * scale;
          return kEncode ? signed_at(value, at) : value;
        },
        [=](std::size_t row, std::size_t column, T value)
            __attribute__((always_inline)) { bucket[begin + row * blocks + column] = value; });
  }
  for (std::size_t part = 0; part < kRows; ++part) {
    const std::size_t begin = part * blocks;
    CombineRows<T>(
        Eight(), blocks,
        [=](std::size_t row, std::size_t column) __attribute__((always_inline)) {
          return bucket[begin + row * kRows * blocks + column];
        },
        [=](std::size_t row, std::size_t column, T value) __attribute__((always_inline)) {
          const std::size_t at = begin + row * kRows * blocks + column;
          bucket[at] = kEncode ? value : signed_at(value, at);
        });
  }
}

template <bool kEncode, typename T>
OR_INLINE void Rotate(std::span<T> bucket, std::uint32_t key, float scale) {
  const std::size_t entries = bucket.size();
  OR_CHECK(IsHadamardSize(entries));
  const T whole_scale = scale / std::sqrt(static_cast<T>(std::min(entries, kHadamardBlock)));
  // The transform of a shorter block is the front of the transform of the block padded with zeros.
  // `RotateBlocks` has one call, since each one is a copy of all its code.
  const bool is_short = entries % kHadamardBlock != 0;
  std::array<T, kHadamardBlock> padded;
  if (is_short) {
    std::ranges::fill(std::ranges::copy(bucket, padded.begin()).out, padded.end(), T{0});
  }
  RotateBlocks<kEncode>(is_short ? padded.data() : bucket.data(),
                        is_short ? 1 : entries / kHadamardBlock, key, whole_scale);
  if (is_short) std::copy_n(padded.begin(), entries, bucket.begin());
}

OR_VECTOR_WIDTHS void EncodeFloat32(std::span<float> bucket, std::uint32_t key) {
  Rotate<true>(bucket, key, 1);
}

OR_VECTOR_WIDTHS void EncodeFloat64(std::span<double> bucket, std::uint32_t key) {
  Rotate<true>(bucket, key, 1);
}

OR_VECTOR_WIDTHS void DecodeFloat32(std::span<float> bucket, std::uint32_t key, float scale) {
  Rotate<false>(bucket, key, scale);
}

OR_VECTOR_WIDTHS void DecodeFloat64(std::span<double> bucket, std::uint32_t key, float scale) {
  Rotate<false>(bucket, key, scale);
}

}  // namespace

bool IsHadamardSize(std::size_t elements) {
  return elements % kHadamardBlock == 0 ||
         (elements < kHadamardBlock && std::has_single_bit(elements));
}

void HadamardEncode(std::span<float> bucket, std::uint32_t key) { EncodeFloat32(bucket, key); }

void HadamardEncode(std::span<double> bucket, std::uint32_t key) { EncodeFloat64(bucket, key); }

void HadamardDecode(std::span<float> bucket, std::uint32_t key, float scale) {
  DecodeFloat32(bucket, key, scale);
}

void HadamardDecode(std::span<double> bucket, std::uint32_t key, float scale) {
  DecodeFloat64(bucket, key, scale);
}

}  // namespace optireduce
