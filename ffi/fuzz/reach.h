// What a run of a fuzz target has reached, in the target's own terms: a fuzzer keeps inputs that
// reach something new. libFuzzer reads the same counters beside its own.

#ifndef FFI_FUZZ_REACH_H_
#define FFI_FUZZ_REACH_H_

#include <cstdint>

namespace optireduce {

// Notes that `what` has happened `count` times; only the order of magnitude matters.
void Reach(std::uint32_t what, std::uint64_t count = 1);

// True when something was reached for the first time since the last call.
bool TakeNews();

}  // namespace optireduce

#endif  // FFI_FUZZ_REACH_H_
