// GHASH, the universal hash of AES-GCM (NIST SP 800-38D, 6.4), with 512-bit carry-less
// multiplication.
//
// A datagram is authenticated without a key schedule or a cipher over its payload, so its tag costs
// one pass of this hash. libcrypto does it at 128 bits before OpenSSL 3.1, and spends as long as
// for 3 kB on the parameters of every call of its interface: together a fifth of the time of an
// allreduce on loopback. Where the processor lacks the instructions, libcrypto does it all.

#ifndef FFI_CRYPTO_GHASH_H_
#define FFI_CRYPTO_GHASH_H_

#include <array>
#include <cstddef>
#include <span>

namespace optireduce {

inline constexpr std::size_t kCipherBlockBytes = 16;  // Source: FIPS 197, of AES.

using CipherBlock = std::array<std::byte, kCipherBlockBytes>;

class Ghash {
 public:
  // The processor has what the others need.
  static bool Supported();

  // `point` is the hash's secret: the cipher's value of the block of zeros.
  explicit Ghash(const CipherBlock& point);
  Ghash(const Ghash&) = delete;
  Ghash& operator=(const Ghash&) = delete;
  ~Ghash();  // Leaves nothing of the secret in memory.

  // The hash of data that is only authenticated, with its padding and the block of lengths.
  CipherBlock Hash(std::span<const std::byte> data) const;

 private:
  // The powers of the point, the highest first.
  // Chosen: 16 blocks share one reduction, which then takes less time than their multiplications.
  static constexpr std::size_t kPowers = 16;
  alignas(64) std::array<CipherBlock, kPowers> powers_;
};

}  // namespace optireduce

#endif  // FFI_CRYPTO_GHASH_H_
