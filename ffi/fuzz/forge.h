// Test of the claim "no forged datagram is accepted": ranks make calls, and receive forgeries
// derived from recorded datagrams between their genuine ones.

#ifndef FFI_FUZZ_FORGE_H_
#define FFI_FUZZ_FORGE_H_

#include <cstdint>

#include "ffi/crypto/seal.h"
#include "ffi/protocol/stats.h"

namespace optireduce {

// X(name, meaning): the kinds of forgery.
#define OPTIREDUCE_FORGERIES(X)                                          \
  X(flipped, "some bits flipped")                                        \
  X(truncated, "cut short")                                              \
  X(extended, "longer")                                                  \
  X(edited, "a field of the header changed")                             \
  X(mixed, "bytes put in, moved or cut out")                             \
  X(replayed, "received before")                                         \
  X(misdirected, "meant for another rank")                               \
  X(reflected, "back to its sender, as if from its receiver")            \
  X(other_session, "of another session with the same secret")            \
  X(other_lane, "of another lane")                                       \
  X(other_key, "of a session with another secret and the same identity") \
  X(random, "random bytes")

struct ForgeReport {
#define OPTIREDUCE_DECLARE_FORGERY(name, meaning) std::uint64_t name = 0;
  OPTIREDUCE_FORGERIES(OPTIREDUCE_DECLARE_FORGERY)
#undef OPTIREDUCE_DECLARE_FORGERY
  std::uint64_t forged = 0;    // all forged datagrams
  std::uint64_t accepted = 0;  // must be 0
  std::uint64_t answered = 0;  // the endpoint sent a response: must be 0
  // Changed the memory held by an endpoint, its timeout, or a counter other than those of refusals:
  // must be 0.
  std::uint64_t state_changes = 0;
  std::uint64_t genuine = 0;
  std::uint64_t calls_completed = 0;    // calls of all ranks, under the attack
  std::uint64_t calls_failed = 0;       // must be 0
  std::uint64_t wrong_sums = 0;         // must be 0
  std::uint64_t memory_bytes_left = 0;  // held by the endpoints at rest: must be 0
  Counters refused;                     // sums over all endpoints

  bool passed() const {
    return accepted == 0 && answered == 0 && state_changes == 0 && calls_failed == 0 &&
           calls_completed > 0 && wrong_sums == 0 && memory_bytes_left == 0;
  }
};

// Tries at least `count` forged datagrams. `protection` must authenticate.
ForgeReport Forge(std::uint64_t count, std::uint64_t seed, Protection protection);

}  // namespace optireduce

#endif  // FFI_FUZZ_FORGE_H_
