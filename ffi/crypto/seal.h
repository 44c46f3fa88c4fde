// Protection of datagrams: AES-128-GCM, by default as a MAC only (GMAC), with keys derived by HKDF
// of OpenSSL's libcrypto. Deterministic: equal keys, numbers and bytes give equal results.

#ifndef FFI_CRYPTO_SEAL_H_
#define FFI_CRYPTO_SEAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "ffi/base/status.h"
#include "ffi/crypto/gcm.h"

namespace optireduce {

inline constexpr std::size_t kSecretBytes = 32;  // shared by a session

using Secret = std::array<std::byte, kSecretBytes>;

// Protection of the datagrams of a session; the format is the same for all three.
enum class Protection : std::uint8_t {
  kNone,          // the tag is zeros, and is not checked
  kAuthenticate,  // header and payload are authenticated, and readable
  kEncrypt,       // the header is authenticated, the payload authenticated and encrypted
};

// HKDF-SHA256 (RFC 5869) of the secret, without salt, with `info` as the context string.
Result<Key> DeriveKey(const Secret& secret, std::string_view info);

// Protects the datagrams of one direction between two ranks. Not thread-safe.
class Sealer {
 public:
  static Result<Sealer> Create(const Key& key, Protection protection,
                               CipherLibrary library = FastestCipherLibrary());

  // Writes the tag of a header, which stays readable, and a payload. Returns the payload as
  // transmitted: `payload` itself or, if encrypted, its ciphertext in `encrypted`, which has the
  // same size and may be the same memory.
  // `number` must never repeat under one key: it is the nonce (96 bits, the upper 32 are zero).
  std::span<const std::byte> Seal(std::uint64_t number, std::span<const std::byte> header,
                                  std::span<const std::byte> payload,
                                  std::span<std::byte> encrypted,
                                  std::span<std::byte, kTagBytes> tag);
  // The readable payload, or nothing if the tag is wrong; tags are compared in constant time. The
  // payload lies in `content` or, if it was encrypted, in `scratch` (at least as long as the
  // payload).
  [[nodiscard]] std::optional<std::span<const std::byte>> Open(
      std::uint64_t number, std::span<const std::byte> content, std::size_t header_bytes,
      std::span<const std::byte, kTagBytes> tag, std::span<std::byte> scratch);

 private:
  Sealer(std::unique_ptr<Gcm> gcm, Protection protection)
      : gcm_(std::move(gcm)), protection_(protection) {}

  std::unique_ptr<Gcm> gcm_;  // null without protection
  Protection protection_;
};

}  // namespace optireduce

#endif  // FFI_CRYPTO_SEAL_H_
