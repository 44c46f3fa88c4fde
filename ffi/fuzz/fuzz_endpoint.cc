// The endpoint under a fuzzer; see endpoint_program.h.

#include <cstddef>
#include <cstdint>
#include <span>

#include "ffi/fuzz/endpoint_program.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  optireduce::RunEndpointProgram({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
