// Wire formats of float32 values: unchanged, or rounded to fewer bytes. Rounding is stochastic and
// unbiased: a value becomes one of its two neighbours in the format, with probabilities whose mean
// is the value.
//
//   kBfloat16  the upper half of a float32: 2 bytes
//
//   kInt8      blocks of 32 values that share an exponent byte E; each value is a whole number k
//              from -127 to 127 and represents k * 2^(E - 127)
//
//   kFloat4    the same blocks; k is one of 0, 1, 2, 3, 4, 6, 8 and 12, or of their negatives
//
// kAuto is one of kFloat32 and kInt8 for each datagram, by which its payload differs in size.
//
// A value of the format is rounded to itself, bit for bit (-0 to 0 in a block). So data may be
// encoded at every transmission: only the first encoding changes it.
//
// Values that are not finite stay so. In a block that contains such a value every value becomes
// NaN, marked by E = 255: no exponent would suit the other values.

#ifndef FFI_CODEC_WIRE_FORMAT_H_
#define FFI_CODEC_WIRE_FORMAT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ffi/base/check.h"

namespace optireduce {

// The values are part of the wire format: never renumber.
enum class WireFormat : std::uint8_t {
  kFloat32 = 0,
  kBfloat16 = 1,
  kInt8 = 2,
  kAuto = 3,
  kFloat4 = 4,
};

inline constexpr std::uint8_t kWireFormats = 5;

// Values that share an exponent.
// Source: MXINT8 and MXFP4 of the OCP Microscaling Formats specification 1.0 have such blocks.
// Their exponent is a byte too, so that a small block costs no more (3 % of int8) than a large one
// with a float32 scale, and one large value makes few others coarse. A power of two makes every
// value exact in float32.
inline constexpr std::size_t kBlockValues = 32;

constexpr std::string_view NameOf(WireFormat format) {
  switch (format) {
    case WireFormat::kFloat32:
      return "float32";
    case WireFormat::kBfloat16:
      return "bfloat16";
    case WireFormat::kInt8:
      return "int8";
    case WireFormat::kAuto:
      return "auto";
    case WireFormat::kFloat4:
      return "float4";
  }
  FailCheck("known wire format", __FILE__, __LINE__);
}

// Bytes of `values` values on the wire. Here and below `format` is that of a datagram, not kAuto.
constexpr std::size_t EncodedBytes(WireFormat format, std::size_t values) {
  switch (format) {
    case WireFormat::kFloat32:
      return values * 4;
    case WireFormat::kBfloat16:
      return values * 2;
    case WireFormat::kInt8:
      return values + (values + kBlockValues - 1) / kBlockValues;
    case WireFormat::kFloat4:
      return values / kBlockValues * (1 + kBlockValues / 2) +
             (values % kBlockValues == 0 ? 0
                                         : 1 + std::min(values % kBlockValues, kBlockValues / 2));
    case WireFormat::kAuto:
      break;
  }
  FailCheck("format of a datagram", __FILE__, __LINE__);
}

// Rounds `values` (float32, may be unaligned) into `out`, which has the size EncodedBytes() and
// does not overlap them. `key` selects the random numbers: equal values and keys give equal bytes
// on every machine.
void Encode(WireFormat format, std::span<const std::byte> values, std::uint64_t key,
            std::span<std::byte> out);

// The inverse, defined for all input bytes; `values` has the size for them and does not overlap.
void Decode(WireFormat format, std::span<const std::byte> encoded, std::span<std::byte> values);

// Overwrites `values` with their rounding errors: values - rounded, or 0 if that is not finite.
// False if all errors are 0.
bool TakeRoundingError(std::span<std::byte> values, std::span<const std::byte> rounded);

}  // namespace optireduce

#endif  // FFI_CODEC_WIRE_FORMAT_H_
