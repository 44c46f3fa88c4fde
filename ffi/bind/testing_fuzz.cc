// Forged datagrams, and programs of the fuzz targets, for tests.

#include <nanobind/nanobind.h>

#include "ffi/bind/testing.h"
#include "ffi/fuzz/endpoint_program.h"
#include "ffi/fuzz/forge.h"

namespace nb = nanobind;

namespace optireduce {
namespace {

// (made by kind, effects, counters of the endpoints)
nb::tuple ForgeOf(std::uint64_t count, std::uint64_t seed, bool encrypt) {
  const ForgeReport report =
      Forge(count, seed, encrypt ? Protection::kEncrypt : Protection::kAuthenticate);
  nb::dict made;
#define OPTIREDUCE_ADD(name, meaning) made[#name] = report.name;
  OPTIREDUCE_FORGERIES(OPTIREDUCE_ADD)
#undef OPTIREDUCE_ADD
  nb::dict effects;
  effects["accepted"] = report.accepted;
  effects["answered"] = report.answered;
  effects["state_changes"] = report.state_changes;
  effects["calls_failed"] = report.calls_failed;
  effects["wrong_sums"] = report.wrong_sums;
  effects["memory_bytes_left"] = report.memory_bytes_left;
  nb::dict counters;
#define OPTIREDUCE_ADD(name, meaning) counters[#name] = report.refused.name;
  OPTIREDUCE_COUNTERS(OPTIREDUCE_ADD)
#undef OPTIREDUCE_ADD
  return nb::make_tuple(made, effects, counters);
}

// What it has reached, by name.
nb::dict RunProgram(const nb::bytes& program) {
  const ProgramReach reach =
      RunEndpointProgram({static_cast<const std::byte*>(program.data()), program.size()});
  nb::dict reached;
#define OPTIREDUCE_ADD(name, meaning) reached[#name] = reach.name;
  OPTIREDUCE_PROGRAM_REACH(OPTIREDUCE_ADD)
#undef OPTIREDUCE_ADD
  return reached;
}

}  // namespace

void BindFuzz(nb::module_& m) {
  m.def("run_endpoint_program", &RunProgram, nb::arg("program"));
  m.def("forge", &ForgeOf, nb::arg("count"), nb::arg("seed"), nb::arg("encrypt"));
}

}  // namespace optireduce
