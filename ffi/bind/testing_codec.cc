// Sums, wire formats and seals for tests.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ffi/bind/testing.h"
#include "ffi/codec/element_type.h"
#include "ffi/codec/reduce.h"
#include "ffi/codec/wire_format.h"
#include "ffi/crypto/seal.h"

namespace nb = nanobind;

namespace optireduce {
namespace {

std::span<const std::byte> BytesOf(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

template <typename T>
T Unwrap(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result.value());
}

ElementType ElementTypeOf(const std::string& name) {
  for (std::uint8_t i = 0; i < kElementTypes; ++i) {
    if (NameOf(static_cast<ElementType>(i)) == name) return static_cast<ElementType>(i);
  }
  throw nb::value_error(("no element type is called " + name).c_str());
}

// The sum as bytes. Every buffer begins `misalignment` bytes after an aligned address. With
// `in_place` >= 0 the result takes the place of that contribution. What lies around the result must
// not change; a RuntimeError tells when it does.
nb::bytes SumOf(const std::string& dtype, const std::vector<nb::bytes>& contributions, double scale,
                std::size_t misalignment, int in_place) {
  const ElementType type = ElementTypeOf(dtype);
  const std::size_t bytes = contributions.at(0).size();
  constexpr std::size_t kGuardBytes = 64;
  constexpr std::byte kGuard{0xA5};
  const std::size_t begin = kGuardBytes + misalignment;
  const std::vector<std::byte> empty(begin + bytes + kGuardBytes, kGuard);
  std::vector<std::vector<std::byte>> buffers(contributions.size() + 1, empty);
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < contributions.size(); ++i) {
    if (contributions[i].size() != bytes) throw nb::value_error("contributions differ in length");
    std::byte* const at = buffers[i].data() + begin;
    if (bytes > 0) std::memcpy(at, contributions[i].data(), bytes);
    sources.push_back(at);
  }
  std::vector<std::byte>& target =
      in_place < 0 ? buffers.back() : buffers.at(static_cast<std::size_t>(in_place));
  SumContributions(type, sources, bytes / SizeOf(type), scale, target.data() + begin);
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool inside = i >= begin && i < begin + bytes;
    if (!inside && target[i] != kGuard) throw std::runtime_error("wrote beyond the result");
  }
  return nb::bytes(target.data() + begin, bytes);
}

WireFormat WireFormatOf(const std::string& name) {
  for (std::uint8_t i = 0; i < kWireFormats; ++i) {
    if (NameOf(static_cast<WireFormat>(i)) == name) return static_cast<WireFormat>(i);
  }
  throw nb::value_error(("no wire format is called " + name).c_str());
}

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

// (the error as bytes, whether there is any)
std::pair<nb::bytes, bool> RoundingErrorOf(const nb::bytes& values, const nb::bytes& rounded) {
  const std::span<const std::byte> given = BytesOf(values);
  std::vector<std::byte> error(given.begin(), given.end());
  const bool any = TakeRoundingError(error, BytesOf(rounded));
  return {nb::bytes(error.data(), error.size()), any};
}

nb::bytes DeriveKeyOf(const nb::bytes& secret, const std::string& info) {
  Secret shared;
  if (secret.size() != shared.size()) throw nb::value_error("a secret has 32 bytes");
  std::memcpy(shared.data(), secret.data(), shared.size());
  const Key key = Unwrap(DeriveKey(shared, info));
  return nb::bytes(key.data(), key.size());
}

class TestSealer {
 public:
  TestSealer(const nb::bytes& key, const std::string& protection)
      : sealer_(Unwrap(Sealer::Create(KeyOf(key), ProtectionOf(protection)))) {}

  // (what travels, its tag)
  std::pair<nb::bytes, nb::bytes> Seal(std::uint64_t number, const nb::bytes& content,
                                       std::size_t header_bytes) {
    const std::span<const std::byte> given = BytesOf(content);
    std::vector<std::byte> sealed(given.begin(), given.end());
    std::array<std::byte, kTagBytes> tag;
    const std::span<std::byte> encrypted = std::span(sealed).subspan(header_bytes);
    const auto payload = sealer_.Seal(number, given.first(header_bytes),
                                      given.subspan(header_bytes), encrypted, tag);
    std::ranges::copy(payload, encrypted.begin());
    return {nb::bytes(sealed.data(), sealed.size()), nb::bytes(tag.data(), tag.size())};
  }
  // The payload, or None.
  nb::object Open(std::uint64_t number, const nb::bytes& content, const nb::bytes& tag,
                  std::size_t header_bytes) {
    if (tag.size() != kTagBytes) throw nb::value_error("a tag has 12 bytes");
    std::vector<std::byte> scratch(content.size());
    const auto payload = sealer_.Open(number, BytesOf(content), header_bytes,
                                      BytesOf(tag).first<kTagBytes>(), scratch);
    if (!payload) return nb::none();
    return nb::bytes(payload->data(), payload->size());
  }

  static Protection ProtectionOf(const std::string& name) {
    if (name == "none") return Protection::kNone;
    if (name == "authenticate") return Protection::kAuthenticate;
    if (name == "encrypt") return Protection::kEncrypt;
    throw nb::value_error("protection: none, authenticate or encrypt");
  }

 private:
  static Key KeyOf(const nb::bytes& bytes) {
    Key key;
    if (bytes.size() != key.size()) throw nb::value_error("a key has 16 bytes");
    std::memcpy(key.data(), bytes.data(), key.size());
    return key;
  }

  Sealer sealer_;
};

}  // namespace

void BindCodec(nb::module_& m) {
  m.def("sum_contributions", &SumOf, nb::arg("dtype"), nb::arg("contributions"),
        nb::arg("scale") = 1.0, nb::arg("misalignment") = 0, nb::arg("in_place") = -1);
  m.def("encode", &EncodeOf, nb::arg("format"), nb::arg("values"), nb::arg("key"),
        nb::arg("misalignment") = 0);
  m.def("decode", &DecodeOf, nb::arg("format"), nb::arg("encoded"), nb::arg("count"));
  m.def("rounding_error", &RoundingErrorOf, nb::arg("values"), nb::arg("rounded"));
  m.def("derive_key", &DeriveKeyOf, nb::arg("secret"), nb::arg("info"));
  nb::class_<TestSealer>(m, "Sealer")
      .def(nb::init<const nb::bytes&, const std::string&>(), nb::arg("key"),
           nb::arg("protection") = "authenticate")
      .def("seal", &TestSealer::Seal, nb::arg("number"), nb::arg("content"),
           nb::arg("header_bytes") = 0)
      .def("open", &TestSealer::Open, nb::arg("number"), nb::arg("content"), nb::arg("tag"),
           nb::arg("header_bytes") = 0);
}

}  // namespace optireduce
