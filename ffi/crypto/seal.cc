#include "ffi/crypto/seal.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <climits>
#include <string>
#include <utility>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"

namespace optireduce {
namespace {

// Source: NIST SP 800-38D, 5.2.1.1: with 96 bits the nonce is used as it is, without hashing.
constexpr std::size_t kNonceBytes = 12;

struct Free {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

Status Unavailable(const std::string& what) {
  return Status(StatusCode::kUnavailable,
                "libcrypto offers no " + what +
                    ", which authenticates every datagram; use OpenSSL 3.0 or newer with its "
                    "default provider enabled (see openssl.cnf).");
}

unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// OpenSSL reads its parameters through non-const pointers and does not write to them.
OSSL_PARAM OctetParameter(const char* name, const void* data, std::size_t bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(data), bytes);
}

std::array<unsigned char, kNonceBytes> NonceOf(std::uint64_t number) {
  std::array<unsigned char, kNonceBytes> nonce{};
  ByteWriter(std::as_writable_bytes(std::span(nonce))).Write(number);
  return nonce;
}

// Bytes that GCM only authenticates, and following bytes that it also encrypts. GMAC is GCM without
// encrypted bytes.
struct Parts {
  int associated;
  int encrypted;
};

Parts PartsOf(std::size_t bytes, std::size_t header_bytes, Protection protection) {
  const std::size_t associated = protection == Protection::kEncrypt ? header_bytes : bytes;
  return {.associated = static_cast<int>(associated),
          .encrypted = static_cast<int>(bytes - associated)};
}

}  // namespace

Result<Key> DeriveKey(const Secret& secret, std::string_view info) {
  const std::unique_ptr<EVP_KDF, Free> kdf(EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr));
  if (kdf == nullptr) return Unavailable("HKDF");
  const std::unique_ptr<EVP_KDF_CTX, Free> context(EVP_KDF_CTX_new(kdf.get()));
  if (context == nullptr) return Unavailable("HKDF");
  std::string digest = OSSL_DIGEST_NAME_SHA2_256;
  const std::array<OSSL_PARAM, 4> parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OctetParameter(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
      OctetParameter(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end(),
  };
  Key key{};
  if (EVP_KDF_derive(context.get(), Raw(key.data()), key.size(), parameters.data()) != 1) {
    return Unavailable("HKDF with SHA-256");
  }
  return key;
}

struct Sealer::Cipher {
  std::unique_ptr<EVP_CIPHER, Free> cipher;
  // Holds the expanded key; only the nonce is new for each datagram.
  std::unique_ptr<EVP_CIPHER_CTX, Free> context;
};

Sealer::Sealer(std::unique_ptr<Cipher> cipher, Protection protection)
    : cipher_(std::move(cipher)), protection_(protection) {}
Sealer::Sealer(Sealer&&) noexcept = default;
Sealer& Sealer::operator=(Sealer&&) noexcept = default;
Sealer::~Sealer() = default;

Result<Sealer> Sealer::Create(const Key& key, Protection protection) {
  // Without a cipher context, which takes more than a kilobyte.
  if (protection == Protection::kNone) return Sealer(nullptr, protection);
  auto cipher = std::make_unique<Cipher>();
  cipher->cipher.reset(EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr));
  if (cipher->cipher == nullptr) return Unavailable("AES-128-GCM");
  OR_CHECK(EVP_CIPHER_get_iv_length(cipher->cipher.get()) == static_cast<int>(kNonceBytes));
  cipher->context.reset(EVP_CIPHER_CTX_new());
  if (cipher->context == nullptr || EVP_EncryptInit_ex2(cipher->context.get(), cipher->cipher.get(),
                                                        Raw(key.data()), nullptr, nullptr) != 1) {
    return Unavailable("AES-128-GCM");
  }
  return Sealer(std::move(cipher), protection);
}

std::span<const std::byte> Sealer::Seal(std::uint64_t number, std::span<const std::byte> header,
                                        std::span<const std::byte> payload,
                                        std::span<std::byte> encrypted,
                                        std::span<std::byte, kTagBytes> tag) {
  OR_CHECK(header.size() <= INT_MAX && payload.size() <= INT_MAX);
  if (protection_ == Protection::kNone) {
    std::ranges::fill(tag, std::byte{0});
    return payload;
  }
  const bool encrypts = protection_ == Protection::kEncrypt;
  OR_CHECK(!encrypts || encrypted.size() == payload.size());
  EVP_CIPHER_CTX* const context = cipher_->context.get();
  const auto payload_bytes = static_cast<int>(payload.size());
  int written = 0;
  bool sealed =
      EVP_EncryptInit_ex2(context, nullptr, nullptr, NonceOf(number).data(), nullptr) == 1 &&
      EVP_EncryptUpdate(context, nullptr, &written, Raw(header.data()),
                        static_cast<int>(header.size())) == 1;
  // Without an output buffer GCM only authenticates.
  if (payload_bytes > 0) {
    sealed = sealed && EVP_EncryptUpdate(context, encrypts ? Raw(encrypted.data()) : nullptr,
                                         &written, Raw(payload.data()), payload_bytes) == 1;
  }
  sealed = sealed && EVP_EncryptFinal_ex(context, Raw(tag.data()), &written) == 1 && written == 0 &&
           EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1;
  OR_CHECK(sealed);
  return encrypts ? encrypted : payload;
}

std::optional<std::span<const std::byte>> Sealer::Open(std::uint64_t number,
                                                       std::span<const std::byte> content,
                                                       std::size_t header_bytes,
                                                       std::span<const std::byte, kTagBytes> tag,
                                                       std::span<std::byte> scratch) {
  OR_CHECK(header_bytes <= content.size() && content.size() <= INT_MAX);
  if (protection_ == Protection::kNone) return content.subspan(header_bytes);
  const Parts parts = PartsOf(content.size(), header_bytes, protection_);
  OR_CHECK(scratch.size() >= static_cast<std::size_t>(parts.encrypted));
  EVP_CIPHER_CTX* const context = cipher_->context.get();
  int written = 0;
  bool opened =
      EVP_DecryptInit_ex2(context, nullptr, nullptr, NonceOf(number).data(), nullptr) == 1 &&
      EVP_DecryptUpdate(context, nullptr, &written, Raw(content.data()), parts.associated) == 1;
  if (parts.encrypted > 0) {
    opened =
        opened && EVP_DecryptUpdate(context, Raw(scratch.data()), &written,
                                    Raw(content.data()) + parts.associated, parts.encrypted) == 1;
  }
  // OpenSSL reads the expected tag through a non-const pointer and does not write to it.
  opened = opened && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes,
                                         const_cast<std::byte*>(tag.data())) == 1;
  // Final compares the tags; decrypted bytes are not returned before that.
  unsigned char none[1];
  if (!opened || EVP_DecryptFinal_ex(context, none, &written) != 1) return std::nullopt;
  if (protection_ == Protection::kAuthenticate) return content.subspan(header_bytes);
  return scratch.first(content.size() - header_bytes);
}

}  // namespace optireduce
