// Collectives of which much data is late.

#include "ffi/runtime/late_share.h"

#include "ffi/bind/event_dict.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

nb::object Add(LateShareDetector& self, const std::string& collective, double contributions,
               double results, std::size_t absent, double deadline, bool passed) {
  CallStats stats;
  stats.missing_contributions = contributions;
  stats.missing_results = results;
  stats.deadline = FromSeconds(deadline);
  stats.live = 4;
  stats.passed = passed;
  for (std::size_t i = 0; i < absent; ++i) {
    stats.absent.emplace_back(static_cast<std::uint16_t>(i));
  }
  std::optional<MonitorEvent> event;
  if (auto told = self.Add(collective, stats)) event = std::move(*told);
  return ToObject(event);
}

void Bind(nb::module_& m) {
  nb::class_<LateShareDetector>(m, "LateShareDetector")
      .def(nb::init<bool>(), "skips"_a)
      .def("add", &Add, "collective"_a, "missing_contributions"_a, "missing_results"_a = 0.0,
           "absent"_a = 0, "deadline"_a = 0.1, "passed"_a = false);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
