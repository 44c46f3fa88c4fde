// A hash of bytes, to compare them: fast, and without resistance to attacks.

#ifndef FFI_SIM_HASH_H_
#define FFI_SIM_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "ffi/base/prng.h"

namespace optireduce {

inline std::uint64_t HashOf(std::span<const std::byte> bytes) {
  // Four chains, which a processor computes in parallel.
  using Block = std::array<std::uint64_t, 4>;
  Block chains = {1, 2, 3, 4};
  const auto add = [&](const std::byte* from, std::size_t count) {
    Block block{};
    std::memcpy(block.data(), from, count);
    for (std::size_t i = 0; i < block.size(); ++i) {
      // Chosen: any odd constant is invertible, and the shift mixes high bits into low ones.
      chains[i] = (chains[i] ^ block[i]) * 0x9E3779B97F4A7C15ull;
      chains[i] ^= chains[i] >> 32;
    }
  };
  std::size_t at = 0;
  for (; at + sizeof(Block) <= bytes.size(); at += sizeof(Block)) add(&bytes[at], sizeof(Block));
  if (at < bytes.size()) add(&bytes[at], bytes.size() - at);
  std::uint64_t hash = bytes.size();
  for (const std::uint64_t chain : chains) hash = Mix(hash ^ chain) + 1;
  return hash;
}

}  // namespace optireduce

#endif  // FFI_SIM_HASH_H_
