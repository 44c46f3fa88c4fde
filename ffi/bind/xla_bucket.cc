#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/bind/status_encoding.h"
#include "ffi/bind/xla_handlers.h"
#include "ffi/codec/hadamard.h"
#include "xla/ffi/api/ffi.h"

namespace optireduce {
namespace {

namespace ffi = xla::ffi;

ffi::Error Concatenate(ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> result) {
  const auto dimensions = result->dimensions();
  const std::size_t rows = dimensions.size() == 2 ? static_cast<std::size_t>(dimensions[0]) : 0;
  std::vector<ffi::AnyBuffer> parts;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto part = operands.get<ffi::AnyBuffer>(i);
    if (part.has_error()) return part.error();
    const bool fits = rows > 0 && part->dimensions().size() == 2 &&
                      part->dimensions()[0] == dimensions[0] &&
                      part->element_type() == result->element_type();
    if (!fits) {
      return EncodeError(
          InvalidArgument("the arrays and the result must be [rows, n], of one dtype; array " +
                          std::to_string(i) + " is not."));
    }
    parts.push_back(*part);
    bytes += part->size_bytes();
  }
  if (bytes != result->size_bytes()) {
    return EncodeError(InvalidArgument("the arrays have " + std::to_string(bytes) +
                                       " bytes, the result has " +
                                       std::to_string(result->size_bytes()) + "."));
  }
  auto* to = static_cast<std::byte*>(result->untyped_data());
  for (std::size_t row = 0; row < rows; ++row) {
    for (const ffi::AnyBuffer& part : parts) {
      const std::size_t row_bytes = part.size_bytes() / rows;
      if (row_bytes == 0) continue;
      std::memcpy(to, static_cast<const std::byte*>(part.untyped_data()) + row * row_bytes,
                  row_bytes);
      to += row_bytes;
    }
  }
  return ffi::Error::Success();
}

// Applies `transform` to the entries of the result, which are those of the operand.
template <typename Transform>
ffi::Error InPlace(ffi::AnyBuffer operand, ffi::Result<ffi::AnyBuffer> result,
                   Transform transform) {
  const std::size_t entries = operand.element_count();
  if (!IsHadamardSize(entries) || result->element_count() != entries ||
      result->element_type() != operand.element_type()) {
    return EncodeError(InvalidArgument(
        "a bucket to be rotated must have 2^k entries, or a multiple of 1024, and the result as "
        "many of the same dtype; got " +
        std::to_string(entries) + " and " + std::to_string(result->element_count()) + "."));
  }
  // If XLA did not alias them.
  if (operand.untyped_data() != result->untyped_data()) {
    std::memcpy(result->untyped_data(), operand.untyped_data(), operand.size_bytes());
  }
  switch (operand.element_type()) {
    case ffi::DataType::F32:
      transform(std::span(result->typed_data<float>(), entries));
      return ffi::Error::Success();
    case ffi::DataType::F64:
      transform(std::span(result->typed_data<double>(), entries));
      return ffi::Error::Success();
    default:
      return EncodeError(InvalidArgument("a bucket to be rotated must be float32 or float64."));
  }
}

ffi::Error RunEncode(ffi::BufferR0<ffi::U32> key, ffi::AnyBuffer bucket,
                     ffi::Result<ffi::AnyBuffer> encoded) {
  return InPlace(bucket, encoded,
                 [key = *key.typed_data()](auto entries) { HadamardEncode(entries, key); });
}

ffi::Error RunDecode(ffi::BufferR0<ffi::U32> key, ffi::BufferR0<ffi::F32> scale,
                     ffi::AnyBuffer encoded, ffi::Result<ffi::AnyBuffer> bucket) {
  return InPlace(encoded, bucket,
                 [key = *key.typed_data(), scale = *scale.typed_data()](auto entries) {
                   HadamardDecode(entries, key, scale);
                 });
}

}  // namespace

XLA_FFI_Error* ConcatenateHandler(XLA_FFI_CallFrame* call_frame) {
  XLA_FFI_DEFINE_HANDLER(handler, Concatenate,
                         ffi::Ffi::Bind().RemainingArgs().Ret<ffi::AnyBuffer>());
  return (*handler)(call_frame);
}

XLA_FFI_Error* HadamardEncodeHandler(XLA_FFI_CallFrame* call_frame) {
  XLA_FFI_DEFINE_HANDLER(
      handler, RunEncode,
      ffi::Ffi::Bind().Arg<ffi::BufferR0<ffi::U32>>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
  return (*handler)(call_frame);
}

XLA_FFI_Error* HadamardDecodeHandler(XLA_FFI_CallFrame* call_frame) {
  XLA_FFI_DEFINE_HANDLER(handler, RunDecode,
                         ffi::Ffi::Bind()
                             .Arg<ffi::BufferR0<ffi::U32>>()
                             .Arg<ffi::BufferR0<ffi::F32>>()
                             .Arg<ffi::AnyBuffer>()
                             .Ret<ffi::AnyBuffer>());
  return (*handler)(call_frame);
}

}  // namespace optireduce
