// Authentication of datagrams: AES-128-GCM used as a MAC (GMAC), and the keys for it by HKDF, both
// from OpenSSL's libcrypto. Deterministic: the same key, number and bytes give the same tag.

#ifndef FFI_CRYPTO_SEAL_H_
#define FFI_CRYPTO_SEAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "ffi/base/status.h"

namespace optireduce {

// Source: NIST SP 800-38D, 5.2.1.2 allows tags of 96 to 128 bits; 12 bytes keep header and tag
// at 40.
inline constexpr std::size_t kTagBytes = 12;
inline constexpr std::size_t kSecretBytes = 32;  // what a session shares
inline constexpr std::size_t kKeyBytes = 16;     // AES-128

using Secret = std::array<std::byte, kSecretBytes>;
using Key = std::array<std::byte, kKeyBytes>;

// HKDF-SHA256 (RFC 5869) of the secret, without salt, with `info` as the context string.
Result<Key> DeriveKey(const Secret& secret, std::string_view info);

// Makes and checks the tags of one direction between two ranks. Not thread-safe: it owns a cipher
// context that is reused, so that a datagram costs no allocation.
class Sealer {
 public:
  static Result<Sealer> Create(const Key& key);
  Sealer(Sealer&&) noexcept;
  Sealer& operator=(Sealer&&) noexcept;
  ~Sealer();

  // `number` must never repeat under one key: it is the nonce (96 bits, the upper 32 are zero).
  void Seal(std::uint64_t number, std::span<const std::byte> content,
            std::span<std::byte, kTagBytes> tag);
  // Compares in constant time.
  [[nodiscard]] bool Verify(std::uint64_t number, std::span<const std::byte> content,
                            std::span<const std::byte, kTagBytes> tag);

 private:
  struct Cipher;
  explicit Sealer(std::unique_ptr<Cipher> cipher);
  std::unique_ptr<Cipher> cipher_;
};

}  // namespace optireduce

#endif  // FFI_CRYPTO_SEAL_H_
