// The one arithmetic of an allreduce: the sum of contributions, in rank order.

#ifndef FFI_CODEC_REDUCE_H_
#define FFI_CODEC_REDUCE_H_

#include <cstddef>
#include <span>

#include "ffi/codec/element_type.h"

namespace optireduce {

// out[i] = (c[0][i] + c[1][i] + ...) * scale, added in the order of `contributions`, so that equal
// inputs give equal bits on every rank and in every replay. 16-bit floats are summed in float32 and
// rounded once, to nearest even. `scale` applies to floating types; integers need scale == 1.
// Contributions may be unaligned. `out` may be identical to one of them, and must not overlap them
// otherwise. At least one contribution. Kernels for wider vectors are selected at run time if the
// compiler supports that.
void SumContributions(ElementType type, std::span<const std::byte* const> contributions,
                      std::size_t elements, double scale, std::byte* out);

}  // namespace optireduce

#endif  // FFI_CODEC_REDUCE_H_
