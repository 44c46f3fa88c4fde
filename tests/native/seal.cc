// Keys and seals.

#include "ffi/crypto/seal.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

nb::bytes DeriveKeyOf(const nb::bytes& secret, const std::string& info) {
  Secret shared;
  if (secret.size() != shared.size()) throw nb::value_error("a secret has 32 bytes");
  std::memcpy(shared.data(), secret.data(), shared.size());
  const Key key = Unwrap(DeriveKey(shared, info));
  return nb::bytes(key.data(), key.size());
}

class TestSealer {
 public:
  TestSealer(const nb::bytes& key, const std::string& protection, const std::string& library)
      : sealer_(Unwrap(Sealer::Create(KeyOf(key), ProtectionOf(protection), LibraryOf(library)))) {}

  // (transmitted bytes, tag)
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

  // The libraries of this build that this processor can use.
  static std::vector<std::string> Libraries() {
    std::vector<std::string> libraries{"libcrypto"};
    if (FastestCipherLibrary() == CipherLibrary::kIpsecMb) libraries.emplace_back("ipsec_mb");
    return libraries;
  }

  static Protection ProtectionOf(const std::string& name) {
    if (name == "none") return Protection::kNone;
    if (name == "authenticate") return Protection::kAuthenticate;
    if (name == "encrypt") return Protection::kEncrypt;
    throw nb::value_error("protection: none, authenticate or encrypt");
  }

 private:
  static CipherLibrary LibraryOf(const std::string& name) {
    return name == "libcrypto" ? CipherLibrary::kLibcrypto : FastestCipherLibrary();
  }
  static Key KeyOf(const nb::bytes& bytes) {
    Key key;
    if (bytes.size() != key.size()) throw nb::value_error("a key has 16 bytes");
    std::memcpy(key.data(), bytes.data(), key.size());
    return key;
  }

  Sealer sealer_;
};

void Bind(nb::module_& m) {
  m.def("derive_key", &DeriveKeyOf, "secret"_a, "info"_a);
  m.def("cipher_libraries", &TestSealer::Libraries);
  nb::class_<TestSealer>(m, "Sealer")
      .def(nb::init<const nb::bytes&, const std::string&, const std::string&>(), "key"_a,
           "protection"_a = "authenticate", "library"_a = "")
      .def("seal", &TestSealer::Seal, "number"_a, "content"_a, "header_bytes"_a = 0)
      .def("open", &TestSealer::Open, "number"_a, "content"_a, "tag"_a, "header_bytes"_a = 0);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
