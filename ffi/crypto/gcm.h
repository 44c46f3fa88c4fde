// AES-128-GCM under one key (NIST SP 800-38D), by one of two libraries with equal results.

#ifndef FFI_CRYPTO_GCM_H_
#define FFI_CRYPTO_GCM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ffi/base/status.h"

namespace optireduce {

// Source: NIST SP 800-38D, 5.2.1.2 allows tags of 96 to 128 bits; 12 bytes keep header and tag at
// 40 bytes.
inline constexpr std::size_t kTagBytes = 12;
inline constexpr std::size_t kKeyBytes = 16;  // AES-128
// Source: NIST SP 800-38D, 5.2.1.1: with 96 bits the nonce is used as it is, without hashing.
inline constexpr std::size_t kNonceBytes = 12;

using Key = std::array<std::byte, kKeyBytes>;
using Nonce = std::array<unsigned char, kNonceBytes>;

enum class CipherLibrary : std::uint8_t {
  kLibcrypto,
  kIpsecMb,  // Intel's, for x86-64; where the build has found it
};

// The fastest library that this build has and that this processor can use.
CipherLibrary FastestCipherLibrary();
// Its name and version, for users.
std::string Describe(CipherLibrary library);

// Sizes are below INT_MAX. Not thread-safe: the state of the library is reused for each datagram.
class Gcm {
 public:
  // Requires that the build has the library, and that the processor can use it.
  static Result<std::unique_ptr<Gcm>> Create(const Key& key, CipherLibrary library);
  virtual ~Gcm() = default;

  // GMAC: the tag of readable bytes, in two parts.
  virtual void Authenticate(const Nonce& nonce, std::span<const std::byte> header,
                            std::span<const std::byte> payload,
                            std::span<std::byte, kTagBytes> tag) = 0;
  // `encrypted` has the size of the payload, and may be its memory.
  virtual void Encrypt(const Nonce& nonce, std::span<const std::byte> header,
                       std::span<const std::byte> payload, std::span<std::byte> encrypted,
                       std::span<std::byte, kTagBytes> tag) = 0;
  // False if the tag is another, which is found in constant time; `payload`, which has the size of
  // `encrypted`, is then undefined.
  [[nodiscard]] virtual bool Decrypt(const Nonce& nonce, std::span<const std::byte> header,
                                     std::span<const std::byte> encrypted,
                                     std::span<const std::byte, kTagBytes> tag,
                                     std::span<std::byte> payload) = 0;
};

}  // namespace optireduce

#endif  // FFI_CRYPTO_GCM_H_
