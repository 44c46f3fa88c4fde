// The element types that can be summed, with their sizes and names.

#ifndef FFI_CODEC_ELEMENT_TYPE_H_
#define FFI_CODEC_ELEMENT_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ffi/base/check.h"

namespace optireduce {

// The values are part of the wire format: never renumber.
enum class ElementType : std::uint8_t {
  kFloat32 = 0,
  kBfloat16 = 1,  // summed in float32
  kFloat16 = 2,   // summed in float32
  kFloat64 = 3,
  kInt32 = 4,  // wraps around, as XLA's integer addition does
  // Two numbers that stay together in every segment, each added by itself.
  kComplex64 = 5,
  kComplex128 = 6,
};

inline constexpr std::uint8_t kElementTypes = 7;

constexpr std::size_t SizeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kBfloat16:
    case ElementType::kFloat16:
      return 2;
    case ElementType::kFloat64:
    case ElementType::kComplex64:
      return 8;
    case ElementType::kComplex128:
      return 16;
  }
  FailCheck("known element type", __FILE__, __LINE__);
}

constexpr std::string_view NameOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kFloat64:
      return "float64";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kComplex64:
      return "complex64";
    case ElementType::kComplex128:
      return "complex128";
  }
  FailCheck("known element type", __FILE__, __LINE__);
}

}  // namespace optireduce

#endif  // FFI_CODEC_ELEMENT_TYPE_H_
