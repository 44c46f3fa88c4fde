// Changes to bytes, from a seed: what noise does, and what somebody does who knows the format.

#ifndef FFI_FUZZ_MUTATE_H_
#define FFI_FUZZ_MUTATE_H_

#include <cstddef>
#include <vector>

#include "ffi/base/prng.h"

namespace optireduce {

using Bytes = std::vector<std::byte>;

// One change: flipped bits, a byte set to a telling value, a piece doubled, moved, cut out or put
// in. Never longer than `bytes_max`.
void MutateOnce(Prng& prng, Bytes& bytes, std::size_t bytes_max);

// A value in one of the header's fields; the rest stays. Shorter ones are left alone.
void MutateField(Prng& prng, Bytes& datagram);

}  // namespace optireduce

#endif  // FFI_FUZZ_MUTATE_H_
