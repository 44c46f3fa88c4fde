#include "ffi/crypto/seal.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <climits>
#include <string>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"
#include "ffi/crypto/gcm_libraries.h"

namespace optireduce {
namespace {

struct Free {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

// OpenSSL reads its parameters through non-const pointers and does not write to them.
OSSL_PARAM OctetParameter(const char* name, const void* data, std::size_t bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(data), bytes);
}

Nonce NonceOf(std::uint64_t number) {
  Nonce nonce{};
  ByteWriter(std::as_writable_bytes(std::span(nonce))).Write(number);
  return nonce;
}

}  // namespace

Result<Key> DeriveKey(const Secret& secret, std::string_view info) {
  const std::unique_ptr<EVP_KDF, Free> kdf(EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr));
  if (kdf == nullptr) return libcrypto::Lacks("HKDF");
  const std::unique_ptr<EVP_KDF_CTX, Free> context(EVP_KDF_CTX_new(kdf.get()));
  if (context == nullptr) return libcrypto::Lacks("HKDF");
  std::string digest = OSSL_DIGEST_NAME_SHA2_256;
  const std::array<OSSL_PARAM, 4> parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OctetParameter(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
      OctetParameter(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end(),
  };
  Key key{};
  if (EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()), key.size(),
                     parameters.data()) != 1) {
    return libcrypto::Lacks("HKDF with SHA-256");
  }
  return key;
}

Result<Sealer> Sealer::Create(const Key& key, Protection protection, CipherLibrary library) {
  // Without a cipher, which takes a kilobyte.
  if (protection == Protection::kNone) return Sealer(nullptr, protection);
  Result<std::unique_ptr<Gcm>> gcm = Gcm::Create(key, library);
  if (!gcm.ok()) return gcm.status();
  return Sealer(std::move(gcm.value()), protection);
}

std::span<const std::byte> Sealer::Seal(std::uint64_t number, std::span<const std::byte> header,
                                        std::span<const std::byte> payload,
                                        std::span<std::byte> encrypted,
                                        std::span<std::byte, kTagBytes> tag) {
  OR_CHECK(header.size() <= INT_MAX && payload.size() <= INT_MAX);
  switch (protection_) {
    case Protection::kNone:
      std::ranges::fill(tag, std::byte{0});
      return payload;
    case Protection::kAuthenticate:
      gcm_->Authenticate(NonceOf(number), header, payload, tag);
      return payload;
    case Protection::kEncrypt:
      OR_CHECK(encrypted.size() == payload.size());
      gcm_->Encrypt(NonceOf(number), header, payload, encrypted, tag);
      return encrypted;
  }
  OR_CHECK(false);
}

std::optional<std::span<const std::byte>> Sealer::Open(std::uint64_t number,
                                                       std::span<const std::byte> content,
                                                       std::size_t header_bytes,
                                                       std::span<const std::byte, kTagBytes> tag,
                                                       std::span<std::byte> scratch) {
  OR_CHECK(header_bytes <= content.size() && content.size() <= INT_MAX);
  const auto payload = content.subspan(header_bytes);
  if (protection_ == Protection::kNone) return payload;
  if (protection_ == Protection::kAuthenticate) {
    std::array<std::byte, kTagBytes> right;
    gcm_->Authenticate(NonceOf(number), content, {}, right);
    if (CRYPTO_memcmp(right.data(), tag.data(), tag.size()) != 0) return std::nullopt;
    return payload;
  }
  OR_CHECK(scratch.size() >= payload.size());
  const auto decrypted = scratch.first(payload.size());
  if (!gcm_->Decrypt(NonceOf(number), content.first(header_bytes), payload, tag, decrypted)) {
    return std::nullopt;
  }
  return decrypted;
}

}  // namespace optireduce
