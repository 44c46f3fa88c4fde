// Theory of operation. All contributions are read in parallel: the N values of an element are added
// in registers and written once, so that memory is passed over once instead of N times. N is a
// constant of the loop in small worlds, up to 8. In larger ones the elements are taken in blocks,
// whose sums stay in the first-level cache while the contributions are added to them in groups.
//
// The additions happen in the same order in every loop and at every vector width, and this file is
// compiled with -ffp-contract=off (see CMakeLists.txt), because a multiplication fused into an
// addition rounds differently: the bits of a sum never depend on the machine or on the number of
// contributions at which the method changes.

#include "ffi/codec/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/codec/dispatch.h"

namespace optireduce {
namespace {

// Contributions added to a block at a time.
// Chosen: 7 sources and the block leave some registers free at every vector width.
constexpr std::size_t kGroup = 7;

// Elements in a block.
// Chosen: 8 KiB of double sums fit into any first-level cache beside the sources.
constexpr std::size_t kBlockElements = 1024;

// Each format has the type of an element in memory (Stored), the type of its sums (Sum), and the
// conversions.
template <typename T>
struct Native {
  using Stored = T;
  using Sum = T;
  OR_INLINE static Sum Widen(Stored value) { return value; }
  OR_INLINE static Stored Narrow(Sum value) { return value; }
};

using Float32 = Native<float>;
using Float64 = Native<double>;
// Unsigned, because signed overflow is undefined; the bits of the sum are the same.
using Int32 = Native<std::uint32_t>;

// The upper half of a float32. Integer arithmetic instead of the compiler's 16-bit types: some
// supported compilers lack these, and others call a library function for them.
struct Bfloat16 {
  using Stored = std::uint16_t;
  using Sum = float;
  OR_INLINE static Sum Widen(Stored value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
  }
  OR_INLINE static Stored Narrow(Sum value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    // Half of the last retained place, less one if that place is even: ties go to even.
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    // Rounding could carry a NaN into an infinity, so a NaN becomes a quiet NaN of the same sign.
    const std::uint32_t quiet = (bits >> 16) | 0x40u;
    const bool nan = (bits & 0x7FFF'FFFFu) > 0x7F80'0000u;
    return static_cast<Stored>(Select(nan, quiet, rounded));
  }
};

// IEEE 754 binary16: sign, 5 bits of exponent (bias 15), 10 bits of fraction. A float32 has 8 bits
// of exponent (bias 127) and 23 of fraction. All cases are computed for every element and then
// selected, so that the loop has no branches; subnormal numbers of float32 are never used, because
// a thread may have them disabled.
struct Float16 {
  using Stored = std::uint16_t;
  using Sum = float;

  OR_INLINE static Sum Widen(Stored value) {
    const std::uint32_t sign = (static_cast<std::uint32_t>(value) & 0x8000u) << 16;
    const std::uint32_t magnitude = (static_cast<std::uint32_t>(value) & 0x7FFFu) << 13;
    const std::uint32_t normal = magnitude + ((127u - 15u) << 23);
    // An exponent of all ones (infinity, NaN) stays all ones.
    const std::uint32_t special = magnitude | 0x7F80'0000u;
    // A subnormal number is fraction * 2^-24. With the exponent of 2^-14 one unit of the fraction
    // is 2^-24, and subtracting 2^-14 leaves the number, exactly.
    constexpr std::uint32_t kTwoToMinus14 = (127u - 14u) << 23;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
        std::bit_cast<float>(magnitude | kTwoToMinus14) - std::bit_cast<float>(kTwoToMinus14));
    const std::uint32_t finite = Select(magnitude < (1u << 23), subnormal, normal);
    return std::bit_cast<float>(Select(magnitude >= (31u << 23), special, finite) | sign);
  }

  OR_INLINE static Stored Narrow(Sum value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7FFF'FFFFu;
    // Half of the last retained place, less one if that place is even; a carry into the exponent is
    // correct, up to infinity.
    const std::uint32_t normal =
        (magnitude - ((127u - 15u) << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    // Below 2^-14 the last place is 2^-24, which is also the last place of a float32 between 1/2
    // and 1. So adding 1/2 rounds to that place, and the fraction is the result.
    constexpr std::uint32_t kHalf = (127u - 1u) << 23;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) +
                                                                 std::bit_cast<float>(kHalf)) -
                                    kHalf;
    const std::uint32_t finite = Select(magnitude < ((127u - 14u) << 23), subnormal, normal);
    const std::uint32_t quiet_nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    const std::uint32_t special = Select(magnitude > 0x7F80'0000u, quiet_nan, 0x7C00u);
    return static_cast<Stored>(Select(magnitude >= ((127u + 16u) << 23), special, finite) | sign);
  }
};

template <typename Format>
OR_INLINE typename Format::Sum Load(const std::byte* from, std::size_t element) {
  typename Format::Stored value;
  std::memcpy(&value, from + element * sizeof(value), sizeof(value));  // may be unaligned
  return Format::Widen(value);
}

template <typename Format>
OR_INLINE void Store(typename Format::Sum sum, std::byte* to, std::size_t element) {
  const typename Format::Stored value = Format::Narrow(sum);
  std::memcpy(to + element * sizeof(value), &value, sizeof(value));
}

template <std::size_t kCount>
using Indices = std::make_index_sequence<kCount>;

// Adds as many contributions to `first` as `I` has indices, in parallel. The first operand, the
// others and the result may differ in format.
template <typename First, typename Other, typename Result, std::size_t... I>
OR_INLINE void SumFixed(std::index_sequence<I...> /*indices*/, const std::byte* first,
                        const std::byte* const* others, std::size_t elements,
                        typename Result::Sum scale, std::byte* out) {
  [[maybe_unused]] const std::array<const std::byte*, sizeof...(I)> other = {others[I]...};
  OR_INDEPENDENT_TURNS
  for (std::size_t i = 0; i < elements; ++i) {
    typename Result::Sum sum = Load<First>(first, i);
    ((sum += Load<Other>(other[I], i)), ...);
    Store<Result>(sum * scale, out, i);
  }
}

// Adds any number of contributions.
template <typename Format>
OR_INLINE void SumInBlocks(std::span<const std::byte* const> contributions, std::size_t elements,
                           typename Format::Sum scale, std::byte* out) {
  using Sum = typename Format::Sum;
  using Wide = Native<Sum>;
  alignas(64) std::array<std::byte, kBlockElements * sizeof(Sum)> block;
  std::byte* const sums = block.data();
  std::array<const std::byte*, kGroup> group;
  for (std::size_t begin = 0; begin < elements; begin += kBlockElements) {
    const std::size_t offset = begin * sizeof(typename Format::Stored);
    const std::size_t count = std::min(kBlockElements, elements - begin);
    SumFixed<Format, Format, Wide>(Indices<0>(), contributions[0] + offset, nullptr, count, 1,
                                   sums);
    std::size_t next = 1;
    for (; next + kGroup <= contributions.size(); next += kGroup) {
      for (std::size_t i = 0; i < kGroup; ++i) group[i] = contributions[next + i] + offset;
      SumFixed<Wide, Format, Wide>(Indices<kGroup>(), sums, group.data(), count, 1, sums);
    }
    for (; next < contributions.size(); ++next) {
      group[0] = contributions[next] + offset;
      SumFixed<Wide, Format, Wide>(Indices<1>(), sums, group.data(), count, 1, sums);
    }
    SumFixed<Wide, Format, Format>(Indices<0>(), sums, nullptr, count, scale, out + offset);
  }
}

template <typename Format>
OR_INLINE void SumAny(std::span<const std::byte* const> contributions, std::size_t elements,
                      typename Format::Sum scale, std::byte* out) {
  const std::byte* const first = contributions[0];
  const std::byte* const* const others = contributions.data() + 1;
  switch (contributions.size()) {
    case 2:
      return SumFixed<Format, Format, Format>(Indices<1>(), first, others, elements, scale, out);
    case 3:
      return SumFixed<Format, Format, Format>(Indices<2>(), first, others, elements, scale, out);
    case 4:
      return SumFixed<Format, Format, Format>(Indices<3>(), first, others, elements, scale, out);
    case 5:
      return SumFixed<Format, Format, Format>(Indices<4>(), first, others, elements, scale, out);
    case 6:
      return SumFixed<Format, Format, Format>(Indices<5>(), first, others, elements, scale, out);
    case 7:
      return SumFixed<Format, Format, Format>(Indices<6>(), first, others, elements, scale, out);
    case 8:
      return SumFixed<Format, Format, Format>(Indices<7>(), first, others, elements, scale, out);
    default:
      return SumInBlocks<Format>(contributions, elements, scale, out);
  }
}

using Contributions = std::span<const std::byte* const>;

OR_VECTOR_WIDTHS void SumFloat32(Contributions contributions, std::size_t elements, float scale,
                                 std::byte* out) {
  SumAny<Float32>(contributions, elements, scale, out);
}

OR_VECTOR_WIDTHS void SumBfloat16(Contributions contributions, std::size_t elements, float scale,
                                  std::byte* out) {
  SumAny<Bfloat16>(contributions, elements, scale, out);
}

OR_VECTOR_WIDTHS void SumFloat16(Contributions contributions, std::size_t elements, float scale,
                                 std::byte* out) {
  SumAny<Float16>(contributions, elements, scale, out);
}

OR_VECTOR_WIDTHS void SumFloat64(Contributions contributions, std::size_t elements, double scale,
                                 std::byte* out) {
  SumAny<Float64>(contributions, elements, scale, out);
}

OR_VECTOR_WIDTHS void SumInt32(Contributions contributions, std::size_t elements, std::byte* out) {
  SumAny<Int32>(contributions, elements, 1u, out);
}

}  // namespace

void SumContributions(ElementType type, std::span<const std::byte* const> contributions,
                      std::size_t elements, double scale, std::byte* out) {
  OR_CHECK(!contributions.empty());
  if (contributions.size() == 1 && scale == 1.0) {
    // A copy keeps the bits, those of a signalling NaN, too.
    if (out != contributions[0]) std::memcpy(out, contributions[0], elements * SizeOf(type));
    return;
  }
  const auto scale_f32 = static_cast<float>(scale);
  switch (type) {
    case ElementType::kFloat32:
      return SumFloat32(contributions, elements, scale_f32, out);
    case ElementType::kBfloat16:
      return SumBfloat16(contributions, elements, scale_f32, out);
    case ElementType::kFloat16:
      return SumFloat16(contributions, elements, scale_f32, out);
    case ElementType::kFloat64:
      return SumFloat64(contributions, elements, scale, out);
    case ElementType::kComplex64:
      return SumFloat32(contributions, 2 * elements, scale_f32, out);
    case ElementType::kComplex128:
      return SumFloat64(contributions, 2 * elements, scale, out);
    case ElementType::kInt32:
      OR_CHECK(scale == 1.0);
      return SumInt32(contributions, elements, out);
  }
  FailCheck("known element type", __FILE__, __LINE__);
}

}  // namespace optireduce
