// Forged datagrams.

#include "ffi/fuzz/forge.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// (forgeries by kind, effects, counters of the endpoints)
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

void Bind(nb::module_& m) { m.def("forge", &ForgeOf, "count"_a, "seed"_a, "encrypt"_a); }

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
