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
constexpr std::uint32_t kOne = 0x3F80'0000;

// The exponent byte of a block that contains a value that is not finite.
constexpr std::uint32_t kNotFinite = 255;
// Chosen: 2^(E - 127) stays a normal number, so values below 2^-126 are rounded to 2^-126 or to 0.
constexpr std::uint32_t kExponentMin = 1;
// The largest E for which numbers of at least 1 are finite, times 2^(E - 127).
constexpr std::uint32_t kExponentMax = 254;

using Values = std::array<float, kBlockValues>;

// Uniform 16-bit random number of a value.
// Source: the finaliser of MurmurHash3 for 32 bits (Appleby); the stride is 2^32 / golden ratio.
OR_INLINE std::uint32_t Random16(std::uint32_t key, std::uint32_t index) {
  std::uint32_t hash = key + index * 0x9E37'79B9u;
  hash = (hash ^ (hash >> 16)) * 0x85EB'CA6Bu;
  hash = (hash ^ (hash >> 13)) * 0xC2B2'AE35u;
  return (hash ^ (hash >> 16)) >> 16;
}

// The same number as a multiple of 2^-16, below 1.
OR_INLINE float Fraction(std::uint32_t key, std::uint32_t index) {
  return static_cast<float>(static_cast<std::int32_t>(Random16(key, index))) * 0x1p-16f;
}

// The numbers of a block in steps. The largest is 2^kLog2 times 1 + kFraction / 2^23.

// Source: MXINT8. The largest is 127. Values in the last 0.8 % below the largest float32 are
// rounded to 127/128 of 2^128.
struct Int8 {
  static constexpr std::uint32_t kLog2 = 6;
  static constexpr std::uint32_t kFraction = 0x7E'0000;
  static constexpr std::size_t Bytes(std::size_t values) { return values; }

  // Writes the first `count` numbers. `scaled`: values in steps; `first`: the index of the first.
  OR_INLINE static void Round(const Values& scaled, std::size_t count, std::uint32_t key,
                              std::uint32_t first, std::byte* out) {
    std::array<std::int8_t, kBlockValues> numbers;
    for (std::uint32_t i = 0; i < kBlockValues; ++i) {
      // Positive, so that the conversion truncates downwards; 16 bits of the fraction are exact.
      const float shifted = scaled[i] + 128.0f;
      const auto whole = static_cast<std::int32_t>(shifted + Fraction(key, first + i)) - 128;
      // Values exceed 127 at the largest exponent only.
      numbers[i] = static_cast<std::int8_t>(std::max(-127, std::min(whole, 127)));
    }
    std::memcpy(out, numbers.data(), count);
  }

  // Reads the first `count` numbers.
  OR_INLINE static void Read(const std::byte* encoded, std::size_t count, Values& numbers) {
    std::array<std::int8_t, kBlockValues> steps{};
    std::memcpy(steps.data(), encoded, count);
    for (std::size_t i = 0; i < kBlockValues; ++i) numbers[i] = static_cast<float>(steps[i]);
  }
};

// Source: MXFP4, whose E2M1 numbers these are, at a step of 0.5. The lower halves of the bytes are
// the first half of the block. The largest is 12. Values in the last quarter below the largest
// float32 are rounded to 3/4 of 2^128.
struct Float4 {
  static constexpr std::uint32_t kLog2 = 3;
  static constexpr std::uint32_t kFraction = 0x40'0000;
  static constexpr std::size_t kBytes = kBlockValues / 2;
  static constexpr std::size_t Bytes(std::size_t values) { return std::min(values, kBytes); }

  OR_INLINE static void Round(const Values& scaled, std::size_t count, std::uint32_t key,
                              std::uint32_t first, std::byte* out) {
    std::array<std::uint8_t, kBlockValues> codes;
    for (std::uint32_t i = 0; i < kBlockValues; ++i) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled[i]);
      const std::uint32_t magnitude = bits & kMagnitude;
      // From 4 on the numbers are 2 apart, from 8 on 4; codes go on without a gap.
      const std::int32_t doublings =
          std::max(0, std::min(static_cast<std::int32_t>(magnitude >> 23) - 128, 2));
      const auto per_step = std::bit_cast<float>((127 - doublings) << 23);
      const auto steps = std::bit_cast<float>(magnitude) * per_step;
      const auto whole = static_cast<std::int32_t>(steps + Fraction(key, first + i));
      const std::int32_t code = std::min(whole + 2 * doublings, 7);
      const std::uint32_t sign = Select(code > 0, bits >> 31 << 3, 0);
      codes[i] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(code) | sign);
    }
    std::array<std::uint8_t, kBytes> both;
    for (std::size_t i = 0; i < kBytes; ++i) {
      both[i] = static_cast<std::uint8_t>(codes[i] | codes[kBytes + i] << 4);
    }
    std::memcpy(out, both.data(), Bytes(count));
  }

  OR_INLINE static void Read(const std::byte* encoded, std::size_t count, Values& numbers) {
    std::array<std::uint8_t, kBytes> both{};
    std::memcpy(both.data(), encoded, Bytes(count));
    std::array<std::uint8_t, kBlockValues> codes;
    for (std::size_t i = 0; i < kBytes; ++i) {
      codes[i] = both[i] & 0xF;
      codes[kBytes + i] = both[i] >> 4;
    }
    for (std::size_t i = 0; i < kBlockValues; ++i) {
      const std::uint32_t code = codes[i] & 7u;
      const std::uint32_t sign = codes[i] >> 3u << 31u;
      // From 2 on the code has the exponent and the upper bit of the fraction of a float32.
      const std::uint32_t bits = Select(code < 2, code * kOne, kOne + (code << 22));
      numbers[i] = std::bit_cast<float>(sign | bits);
    }
  }
};

// The smallest exponent for which no value exceeds the largest number: that of the power of two
// below the largest value, or one more where the fraction of this value is larger.
template <typename Numbers>
OR_INLINE std::uint32_t ExponentOf(const Values& values) {
  std::int32_t largest = 0;
  for (const float value : values) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & kMagnitude;
    largest = std::max(largest, static_cast<std::int32_t>(magnitude));
  }
  const auto bits = static_cast<std::uint32_t>(largest);
  if (bits >= kInfinity) return kNotFinite;
  const std::uint32_t exponent = (bits + (0x7F'FFFF - Numbers::kFraction)) >> 23;
  return std::clamp(exponent, kExponentMin + Numbers::kLog2, kExponentMax) - Numbers::kLog2;
}

template <typename Numbers>
OR_INLINE void EncodeBlock(const Values& values, std::size_t count, std::uint32_t key,
                           std::uint32_t first, std::byte* out) {
  const std::uint32_t exponent = ExponentOf<Numbers>(values);
  out[0] = static_cast<std::byte>(exponent);
  if (exponent == kNotFinite) {
    std::memset(out + 1, 0, Numbers::Bytes(count));
    return;
  }
  const auto per_step = std::bit_cast<float>((254 - exponent) << 23);
  Values scaled;
  for (std::size_t i = 0; i < kBlockValues; ++i) scaled[i] = values[i] * per_step;
  Numbers::Round(scaled, count, key, first, out + 1);
}

template <typename Numbers>
OR_INLINE void DecodeBlock(const std::byte* encoded, std::size_t count, Values& values) {
  const auto exponent = static_cast<std::uint32_t>(encoded[0]);
  // A quiet NaN in place of infinity, because 0 times it must not be finite.
  const std::uint32_t quiet = exponent == kNotFinite ? 1u << 22 : 0;
  const auto step = std::bit_cast<float>(exponent << 23 | quiet);
  Numbers::Read(encoded + 1, count, values);
  for (float& value : values) value *= step;
}

template <typename Numbers>
OR_INLINE void EncodeBlocks(const std::byte* values, std::size_t count, std::uint32_t key,
                            std::byte* out) {
  Values block;
  std::size_t i = 0;
  for (; i + kBlockValues <= count; i += kBlockValues) {
    std::memcpy(block.data(), values + i * sizeof(float), sizeof(block));
    EncodeBlock<Numbers>(block, kBlockValues, key, static_cast<std::uint32_t>(i), out);
    out += 1 + Numbers::Bytes(kBlockValues);
  }
  if (i == count) return;
  // The last block of a segment may be shorter: padding zeros do not change its exponent.
  block.fill(0);
  std::memcpy(block.data(), values + i * sizeof(float), (count - i) * sizeof(float));
  EncodeBlock<Numbers>(block, count - i, key, static_cast<std::uint32_t>(i), out);
}

template <typename Numbers>
OR_INLINE void DecodeBlocks(const std::byte* encoded, std::size_t count, std::byte* values) {
  Values block;
  std::size_t i = 0;
  for (; i + kBlockValues <= count; i += kBlockValues) {
    DecodeBlock<Numbers>(encoded, kBlockValues, block);
    std::memcpy(values + i * sizeof(float), block.data(), sizeof(block));
    encoded += 1 + Numbers::Bytes(kBlockValues);
  }
  if (i == count) return;
  DecodeBlock<Numbers>(encoded, count - i, block);
  std::memcpy(values + i * sizeof(float), block.data(), (count - i) * sizeof(float));
}

OR_VECTOR_WIDTHS void EncodeInt8(const std::byte* values, std::size_t count, std::uint32_t key,
                                 std::byte* out) {
  EncodeBlocks<Int8>(values, count, key, out);
}

OR_VECTOR_WIDTHS void DecodeInt8(const std::byte* encoded, std::size_t count, std::byte* values) {
  DecodeBlocks<Int8>(encoded, count, values);
}

OR_VECTOR_WIDTHS void EncodeFloat4(const std::byte* values, std::size_t count, std::uint32_t key,
                                   std::byte* out) {
  EncodeBlocks<Float4>(values, count, key, out);
}

OR_VECTOR_WIDTHS void DecodeFloat4(const std::byte* encoded, std::size_t count, std::byte* values) {
  DecodeBlocks<Float4>(encoded, count, values);
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
    case WireFormat::kFloat4:
      return EncodeFloat4(values.data(), count, mixed, out.data());
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
    case WireFormat::kFloat4:
      return DecodeFloat4(encoded.data(), count, values.data());
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
