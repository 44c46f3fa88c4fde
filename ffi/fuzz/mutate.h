// Seeded changes to bytes: noise, and the changes of an attacker that knows the format.

#ifndef FFI_FUZZ_MUTATE_H_
#define FFI_FUZZ_MUTATE_H_

#include <cstddef>
#include <vector>

#include "ffi/base/prng.h"

namespace optireduce {

using Bytes = std::vector<std::byte>;

// One change: flipped bits, a byte set to a boundary value, a piece duplicated, moved, removed or
// inserted. The result has at most `bytes_max` bytes.
void MutateOnce(Prng& prng, Bytes& bytes, std::size_t bytes_max);

// Changes one field of the header. Datagrams shorter than a header remain unchanged.
void MutateField(Prng& prng, Bytes& datagram);

}  // namespace optireduce

#endif  // FFI_FUZZ_MUTATE_H_
