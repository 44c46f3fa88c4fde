// The encoding of values.

#include "ffi/codec/wire_format.h"

#include <cstring>

#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace optireduce::testing {
namespace OR_FILE {

// The values, float32, begin `misalignment` bytes after an aligned address, and so does the result.
nb::bytes EncodeOf(const std::string& format, const nb::bytes& values, std::uint64_t key,
                   std::size_t misalignment) {
  std::vector<std::byte> given(misalignment + values.size());
  if (values.size() > 0) std::memcpy(given.data() + misalignment, values.data(), values.size());
  const std::size_t bytes = EncodedBytes(WireFormatOf(format), values.size() / sizeof(float));
  std::vector<std::byte> encoded(misalignment + bytes);
  Encode(WireFormatOf(format), std::span(given).subspan(misalignment), key,
         std::span(encoded).subspan(misalignment));
  return nb::bytes(encoded.data() + misalignment, bytes);
}

nb::bytes DecodeOf(const std::string& format, const nb::bytes& encoded, std::size_t count) {
  if (encoded.size() != EncodedBytes(WireFormatOf(format), count)) {
    throw nb::value_error("so many values have another number of bytes");
  }
  std::vector<std::byte> values(count * sizeof(float));
  Decode(WireFormatOf(format), BytesOf(encoded), values);
  return nb::bytes(values.data(), values.size());
}

// (the errors as bytes, whether any is nonzero)
std::pair<nb::bytes, bool> RoundingErrorOf(const nb::bytes& values, const nb::bytes& rounded) {
  const std::span<const std::byte> given = BytesOf(values);
  std::vector<std::byte> error(given.begin(), given.end());
  const bool any = TakeRoundingError(error, BytesOf(rounded));
  return {nb::bytes(error.data(), error.size()), any};
}

void Bind(nb::module_& m) {
  m.def("encode", &EncodeOf, "format"_a, "values"_a, "key"_a, "misalignment"_a = 0);
  m.def("decode", &DecodeOf, "format"_a, "encoded"_a, "count"_a);
  m.def("rounding_error", &RoundingErrorOf, "values"_a, "rounded"_a);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
