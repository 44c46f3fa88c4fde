// The one arithmetic of an allreduce: adding contributions, in rank order.

#ifndef FFI_CODEC_REDUCE_H_
#define FFI_CODEC_REDUCE_H_

#include <cstddef>
#include <span>

#include "ffi/codec/element_type.h"

namespace optireduce {

// out[i] = (c[0][i] + c[1][i] + ...) * scale, added in the order of `contributions`, so that equal
// inputs give equal bits on every rank and in every replay. 16-bit floats are summed in float32 and
// rounded once, to nearest even. `scale` applies to floating types; integers need scale == 1.
// Contributions need no alignment. `out` may be one of them, exactly; it must not overlap
// otherwise. At least one contribution. Kernels for wider vectors are chosen at run time where the
// compiler can.
void SumContributions(ElementType type, std::span<const std::byte* const> contributions,
                      std::size_t elements, double scale, std::byte* out);

}  // namespace optireduce

#endif  // FFI_CODEC_REDUCE_H_
