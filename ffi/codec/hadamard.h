// The rotation defined by jax_optireduce/_program/hadamard.py, at the speed of the memory.

#ifndef FFI_CODEC_HADAMARD_H_
#define FFI_CODEC_HADAMARD_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace optireduce {

// Entries of a full block. Source: BLOCK_SIZE in hadamard.py, which gives the reason.
inline constexpr std::size_t kHadamardBlock = 1024;

// True if `elements` are full blocks, or one shorter block whose size is a power of two.
bool IsHadamardSize(std::size_t elements);

// Transforms the bucket in place: signs chosen by `key`, then the orthonormal transform of each
// block; entry i belongs to block i mod (number of blocks). Requires IsHadamardSize(bucket.size()).
// Equal to `encode` in hadamard.py except for rounding: the order of the additions differs.
void HadamardEncode(std::span<float> bucket, std::uint32_t key);
void HadamardEncode(std::span<double> bucket, std::uint32_t key);

// The inverse, multiplied by `scale`.
void HadamardDecode(std::span<float> bucket, std::uint32_t key, float scale);
void HadamardDecode(std::span<double> bucket, std::uint32_t key, float scale);

}  // namespace optireduce

#endif  // FFI_CODEC_HADAMARD_H_
