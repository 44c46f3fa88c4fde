// Fuzzing of the endpoint as a state machine. The input is a program: the calls of the ranks, and
// the actions of the network and its attackers.
//
// Its first byte: 1 a rank lies; 2 three ranks or more, with 128 five; 4 encrypted, 8 unprotected;
// 16 short datagrams; 64 learned deadlines. Its second byte: 1 two lanes. Then steps, each of a
// byte and its arguments.

#ifndef FFI_FUZZ_ENDPOINT_PROGRAM_H_
#define FFI_FUZZ_ENDPOINT_PROGRAM_H_

#include <cstddef>
#include <span>

namespace optireduce {

// X(name, meaning)
#define OPTIREDUCE_PROGRAM_REACH(X)                                      \
  X(drain, "a drain has ended with a result")                            \
  X(merge, "a call was taken that is too far ahead, to be merged")       \
  X(learned_deadline, "a call has ended that had a deadline of its own") \
  X(view, "ranks have agreed on going on without one")                   \
  X(view_after_view, "and then on going on without another")             \
  X(view_of_lanes, "both lanes of a rank go on without one")

struct ProgramReach {
#define OPTIREDUCE_DECLARE(name, meaning) bool name = false;
  OPTIREDUCE_PROGRAM_REACH(OPTIREDUCE_DECLARE)
#undef OPTIREDUCE_DECLARE
};

// Runs a program; any bytes are a valid one. A violation ends the process.
ProgramReach RunEndpointProgram(std::span<const std::byte> input);

}  // namespace optireduce

#endif  // FFI_FUZZ_ENDPOINT_PROGRAM_H_
