#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <utility>

#include "ffi/base/check.h"
#include "ffi/crypto/gcm_libraries.h"

namespace optireduce::libcrypto {
namespace {

struct Free {
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

class LibcryptoGcm final : public Gcm {
 public:
  // The context holds the expanded key; only the nonce is new for each datagram.
  LibcryptoGcm(std::unique_ptr<EVP_CIPHER, Free> cipher,
               std::unique_ptr<EVP_CIPHER_CTX, Free> context)
      : cipher_(std::move(cipher)), context_(std::move(context)) {}

  void Authenticate(const Nonce& nonce, std::span<const std::byte> header,
                    std::span<const std::byte> payload,
                    std::span<std::byte, kTagBytes> tag) override {
    // Without an output buffer GCM only authenticates.
    Seal(nonce, header, payload, nullptr, tag);
  }

  void Encrypt(const Nonce& nonce, std::span<const std::byte> header,
               std::span<const std::byte> payload, std::span<std::byte> encrypted,
               std::span<std::byte, kTagBytes> tag) override {
    Seal(nonce, header, payload, Raw(encrypted.data()), tag);
  }

  bool Decrypt(const Nonce& nonce, std::span<const std::byte> header,
               std::span<const std::byte> encrypted, std::span<const std::byte, kTagBytes> tag,
               std::span<std::byte> payload) override {
    int written = 0;
    bool opened = EVP_DecryptInit_ex2(context_.get(), nullptr, nullptr, nonce.data(), nullptr) == 1;
    for (const auto& [part, output] : {std::pair(header, static_cast<unsigned char*>(nullptr)),
                                       std::pair(encrypted, Raw(payload.data()))}) {
      if (part.empty()) continue;
      opened = opened && EVP_DecryptUpdate(context_.get(), output, &written, Raw(part.data()),
                                           static_cast<int>(part.size())) == 1;
    }
    // OpenSSL reads the expected tag through a non-const pointer and does not write to it.
    opened = opened && EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes,
                                           const_cast<std::byte*>(tag.data())) == 1;
    unsigned char none[1];
    return opened && EVP_DecryptFinal_ex(context_.get(), none, &written) == 1;
  }

 private:
  void Seal(const Nonce& nonce, std::span<const std::byte> header,
            std::span<const std::byte> payload, unsigned char* encrypted,
            std::span<std::byte, kTagBytes> tag) {
    int written = 0;
    bool sealed = EVP_EncryptInit_ex2(context_.get(), nullptr, nullptr, nonce.data(), nullptr) == 1;
    for (const auto& [part, output] :
         {std::pair(header, static_cast<unsigned char*>(nullptr)), std::pair(payload, encrypted)}) {
      if (part.empty()) continue;
      sealed = sealed && EVP_EncryptUpdate(context_.get(), output, &written, Raw(part.data()),
                                           static_cast<int>(part.size())) == 1;
    }
    unsigned char none[1];
    sealed = sealed && EVP_EncryptFinal_ex(context_.get(), none, &written) == 1 &&
             EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1;
    OR_CHECK(sealed);
  }

  std::unique_ptr<EVP_CIPHER, Free> cipher_;
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
};

}  // namespace

Status Lacks(const std::string& algorithm) {
  return Status(StatusCode::kUnavailable,
                "libcrypto offers no " + algorithm +
                    ", which authenticates every datagram; use OpenSSL 3.0 or newer with its "
                    "default provider enabled (see openssl.cnf).");
}

std::string Version() {
  const std::string version = OpenSSL_version(OPENSSL_VERSION);
#ifdef OPTIREDUCE_STATIC_LIBCRYPTO
  return version + ", built in";
#else
  return version;
#endif
}

Result<std::unique_ptr<Gcm>> NewGcm(const Key& key) {
  std::unique_ptr<EVP_CIPHER, Free> cipher(EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr));
  if (cipher == nullptr) return Lacks("AES-128-GCM");
  OR_CHECK(EVP_CIPHER_get_iv_length(cipher.get()) == static_cast<int>(kNonceBytes));
  std::unique_ptr<EVP_CIPHER_CTX, Free> context(EVP_CIPHER_CTX_new());
  if (context == nullptr ||
      EVP_EncryptInit_ex2(context.get(), cipher.get(), Raw(key.data()), nullptr, nullptr) != 1) {
    return Lacks("AES-128-GCM");
  }
  return std::unique_ptr<Gcm>(
      std::make_unique<LibcryptoGcm>(std::move(cipher), std::move(context)));
}

}  // namespace optireduce::libcrypto
