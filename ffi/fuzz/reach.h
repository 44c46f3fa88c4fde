// The effects of a run of a fuzz target, in the target's own terms: a fuzzer keeps inputs with new
// effects. libFuzzer reads the same counters in addition to its own.

#ifndef FFI_FUZZ_REACH_H_
#define FFI_FUZZ_REACH_H_

#include <cstdint>

namespace optireduce {

// Notes that `what` has happened `count` times; only the order of magnitude matters.
void Reach(std::uint32_t what, std::uint64_t count = 1);

// True if there was a new effect since the last call.
bool TakeNews();

}  // namespace optireduce

#endif  // FFI_FUZZ_REACH_H_
