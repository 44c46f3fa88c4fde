// Theory of operation. A value lies a fraction f of a step above the next smaller number of the
// format. A random number u, uniform in [0, 1), is added, in steps, and the sum is truncated to
// whole steps: it is rounded up with probability f. The random numbers are a hash of (key, index),
// so the values share no state and the loop vectorizes.
//
// As in reduce.cc no compiler may fuse a multiplication into an addition: the bits must be the same
// on all machines. Subnormal numbers are neither made nor needed: a thread may have them disabled.

#include "ffi/codec/wire_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "ffi/base/prng.h"
#include "ffi/codec/dispatch.h"

namespace optireduce {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFF'FFFF;
constexpr std::uint32_t kInfinity = 0x7F80'0000;

// One byte of exponent before the values.
constexpr std::size_t kBlockBytes = 1 + kBlockValues;
// The exponent byte of a block that contains a value that is not finite.
constexpr std::uint32_t kNotFinite = 255;
// Chosen: 2^(E - 127) and its inverse stay normal numbers, and 127 times it is finite. So values
// below 2^-126 are rounded to 2^-126 or to 0, and the last 0.8 % below the largest float32 to
// 127/128 of 2^128.
constexpr std::uint32_t kExponentMin = 1;
constexpr std::uint32_t kExponentMax = 248;

using Values = std::array<float, kBlockValues>;

// Uniform 16-bit random number of a value.
// Source: the finaliser of MurmurHash3 for 32 bits (Appleby); the stride is 2^32 / golden ratio.
OR_INLINE std::uint32_t Random16(std::uint32_t key, std::uint32_t index) {
  std::uint32_t hash = key + index * 0x9E37'79B9u;
  hash = (hash ^ (hash >> 16)) * 0x85EB'CA6Bu;
  hash = (hash ^ (hash >> 13)) * 0xC2B2'AE35u;
  return (hash ^ (hash >> 16)) >> 16;
}

// The smallest exponent for which no value exceeds 127.
OR_INLINE std::uint32_t ExponentOf(const Values& values) {
  std::int32_t largest = 0;
  for (const float value : values) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & kMagnitude;
    largest = std::max(largest, static_cast<std::int32_t>(magnitude));
  }
  const auto bits = static_cast<std::uint32_t>(largest);
  if (bits >= kInfinity) return kNotFinite;
  // 127 is 2^6 times 1.984375, whose fraction is 0x7E0000: a larger fraction needs one more.
  const std::uint32_t exponent = (bits + (0x7F'FFFF - 0x7E'0000)) >> 23;
  return std::clamp(exponent, kExponentMin + 6, kExponentMax + 6) - 6;
}

OR_INLINE void EncodeBlock(const Values& values, std::uint32_t key, std::uint32_t first,
                           std::byte* out) {
  const std::uint32_t exponent = ExponentOf(values);
  out[0] = static_cast<std::byte>(exponent);
  if (exponent == kNotFinite) {
    std::memset(out + 1, 0, kBlockValues);
    return;
  }
  const auto per_step = std::bit_cast<float>((254 - exponent) << 23);
  std::array<std::int8_t, kBlockValues> steps;
  for (std::uint32_t i = 0; i < kBlockValues; ++i) {
    // Positive, so that the conversion truncates downwards; 16 bits of the fraction are exact.
    const float shifted = values[i] * per_step + 128.0f;
    const auto random = static_cast<float>(static_cast<std::int32_t>(Random16(key, first + i)));
    const auto whole = static_cast<std::int32_t>(shifted + random * 0x1p-16f) - 128;
    // Values exceed 127 at the largest exponent only.
    steps[i] = static_cast<std::int8_t>(std::max(-127, std::min(whole, 127)));
  }
  std::memcpy(out + 1, steps.data(), kBlockValues);
}

OR_INLINE void DecodeBlock(const std::byte* encoded, Values& values) {
  const auto exponent = static_cast<std::uint32_t>(encoded[0]);
  // A quiet NaN in place of infinity, because 0 times it must not be finite.
  const std::uint32_t quiet = exponent == kNotFinite ? 1u << 22 : 0;
  const auto step = std::bit_cast<float>(exponent << 23 | quiet);
  std::array<std::int8_t, kBlockValues> steps;
  std::memcpy(steps.data(), encoded + 1, kBlockValues);
  for (std::size_t i = 0; i < kBlockValues; ++i) values[i] = static_cast<float>(steps[i]) * step;
}

OR_VECTOR_WIDTHS void EncodeInt8(const std::byte* values, std::size_t count, std::uint32_t key,
                                 std::byte* out) {
  Values block;
  std::size_t i = 0;
  for (; i + kBlockValues <= count; i += kBlockValues, out += kBlockBytes) {
    std::memcpy(block.data(), values + i * sizeof(float), sizeof(block));
    EncodeBlock(block, key, static_cast<std::uint32_t>(i), out);
  }
  if (i == count) return;
  // The last block of a segment may be shorter: padding zeros do not change its exponent.
  block.fill(0);
  std::memcpy(block.data(), values + i * sizeof(float), (count - i) * sizeof(float));
  std::array<std::byte, kBlockBytes> whole;
  EncodeBlock(block, key, static_cast<std::uint32_t>(i), whole.data());
  std::memcpy(out, whole.data(), 1 + count - i);
}

OR_VECTOR_WIDTHS void DecodeInt8(const std::byte* encoded, std::size_t count, std::byte* values) {
  Values block;
  std::size_t i = 0;
  for (; i + kBlockValues <= count; i += kBlockValues, encoded += kBlockBytes) {
    DecodeBlock(encoded, block);
    std::memcpy(values + i * sizeof(float), block.data(), sizeof(block));
  }
  if (i == count) return;
  std::array<std::byte, kBlockBytes> whole{};
  std::memcpy(whole.data(), encoded, 1 + count - i);
  DecodeBlock(whole.data(), block);
  std::memcpy(values + i * sizeof(float), block.data(), (count - i) * sizeof(float));
}

OR_INLINE std::uint16_t RoundToBfloat16(std::uint32_t bits, std::uint32_t random) {
  const std::uint32_t magnitude = bits & kMagnitude;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  // Saturates at the largest finite number.
  const std::uint32_t finite = std::min((magnitude + random) >> 16, 0x7F7Fu);
  // A NaN whose upper half equals an infinity must stay a NaN.
  const std::uint32_t nan = (magnitude >> 16) | 0x40u;
  const std::uint32_t special = Select(magnitude > kInfinity, nan, kInfinity >> 16);
  return static_cast<std::uint16_t>(Select(magnitude >= kInfinity, special, finite) | sign);
}

OR_VECTOR_WIDTHS void EncodeBfloat16(const std::byte* values, std::size_t count, std::uint32_t key,
                                     std::byte* out) {
  OR_INDEPENDENT_TURNS
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, values + i * sizeof(bits), sizeof(bits));
    const std::uint16_t rounded =
        RoundToBfloat16(bits, Random16(key, static_cast<std::uint32_t>(i)));
    std::memcpy(out + i * sizeof(rounded), &rounded, sizeof(rounded));
  }
}

OR_VECTOR_WIDTHS void DecodeBfloat16(const std::byte* encoded, std::size_t count,
                                     std::byte* values) {
  OR_INDEPENDENT_TURNS
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, encoded + i * sizeof(half), sizeof(half));
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    std::memcpy(values + i * sizeof(bits), &bits, sizeof(bits));
  }
}

OR_VECTOR_WIDTHS std::uint32_t SubtractRounded(std::byte* values, const std::byte* rounded,
                                               std::size_t count) {
  std::uint32_t any = 0;
  OR_INDEPENDENT_TURNS
  for (std::size_t i = 0; i < count; ++i) {
    float value;
    float kept;
    std::memcpy(&value, values + i * sizeof(value), sizeof(value));
    std::memcpy(&kept, rounded + i * sizeof(kept), sizeof(kept));
    const auto error = std::bit_cast<std::uint32_t>(value - kept);
    const std::uint32_t finite = Select((error & kMagnitude) < kInfinity, error, 0);
    any |= finite & kMagnitude;
    std::memcpy(values + i * sizeof(finite), &finite, sizeof(finite));
  }
  return any;
}

}  // namespace

void Encode(WireFormat format, std::span<const std::byte> values, std::uint64_t key,
            std::span<std::byte> out) {
  const std::size_t count = values.size() / sizeof(float);
  OR_CHECK(out.size() == EncodedBytes(format, count));
  const auto mixed = static_cast<std::uint32_t>(Mix(key));
  switch (format) {
    case WireFormat::kFloat32:
      if (!values.empty()) std::memcpy(out.data(), values.data(), values.size());
      return;
    case WireFormat::kBfloat16:
      return EncodeBfloat16(values.data(), count, mixed, out.data());
    case WireFormat::kInt8:
      return EncodeInt8(values.data(), count, mixed, out.data());
    case WireFormat::kAuto:
      break;
  }
  FailCheck("format of a datagram", __FILE__, __LINE__);
}

void Decode(WireFormat format, std::span<const std::byte> encoded, std::span<std::byte> values) {
  const std::size_t count = values.size() / sizeof(float);
  OR_CHECK(encoded.size() == EncodedBytes(format, count));
  switch (format) {
    case WireFormat::kFloat32:
      if (!values.empty()) std::memcpy(values.data(), encoded.data(), values.size());
      return;
    case WireFormat::kBfloat16:
      return DecodeBfloat16(encoded.data(), count, values.data());
    case WireFormat::kInt8:
      return DecodeInt8(encoded.data(), count, values.data());
    case WireFormat::kAuto:
      break;
  }
  FailCheck("format of a datagram", __FILE__, __LINE__);
}

bool TakeRoundingError(std::span<std::byte> values, std::span<const std::byte> rounded) {
  OR_CHECK(values.size() == rounded.size());
  return SubtractRounded(values.data(), rounded.data(), values.size() / sizeof(float)) != 0;
}

}  // namespace optireduce
