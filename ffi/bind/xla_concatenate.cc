#include "ffi/bind/xla_concatenate.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/bind/status_encoding.h"
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

}  // namespace

XLA_FFI_Error* ConcatenateHandler(XLA_FFI_CallFrame* call_frame) {
  XLA_FFI_DEFINE_HANDLER(handler, Concatenate,
                         ffi::Ffi::Bind().RemainingArgs().Ret<ffi::AnyBuffer>());
  return (*handler)(call_frame);
}

}  // namespace optireduce
