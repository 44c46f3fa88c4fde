// The rotation of a bucket that jax_optireduce/_hadamard.py defines, at the speed of the memory.

#ifndef FFI_CODEC_HADAMARD_H_
#define FFI_CODEC_HADAMARD_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace optireduce {

// Entries of a full block. Source: BLOCK_SIZE in _hadamard.py, which says why.
inline constexpr std::size_t kHadamardBlock = 1024;

// Whether `elements` are full blocks, or one shorter block: a power of two.
bool IsHadamardSize(std::size_t elements);

// In place: signs chosen by `key`, then the orthonormal transform of each block; entry i belongs to
// block i mod (number of blocks). IsHadamardSize(bucket.size()). What `encode` in _hadamard.py
// computes, but for rounding: sums are made in another order.
void HadamardEncode(std::span<float> bucket, std::uint32_t key);
void HadamardEncode(std::span<double> bucket, std::uint32_t key);

// Undoes it, and multiplies by `scale`.
void HadamardDecode(std::span<float> bucket, std::uint32_t key, float scale);
void HadamardDecode(std::span<double> bucket, std::uint32_t key, float scale);

}  // namespace optireduce

#endif  // FFI_CODEC_HADAMARD_H_
