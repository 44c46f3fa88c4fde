// Programs of the fuzz target of the endpoint.

#include "ffi/fuzz/endpoint_program.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// The effects of the program, by name.
nb::dict RunProgram(const nb::bytes& program) {
  const ProgramReach reach = RunEndpointProgram(BytesOf(program));
  nb::dict reached;
#define OPTIREDUCE_ADD(name, meaning) reached[#name] = reach.name;
  OPTIREDUCE_PROGRAM_REACH(OPTIREDUCE_ADD)
#undef OPTIREDUCE_ADD
  return reached;
}

void Bind(nb::module_& m) { m.def("run_endpoint_program", &RunProgram, "program"_a); }

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
