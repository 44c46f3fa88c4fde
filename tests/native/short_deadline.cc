// The detection of deadlines that are too short.

#include "ffi/runtime/short_deadline.h"

#include "ffi/bind/event_dict.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<ShortDeadlineDetector>(m, "ShortDeadlineDetector")
      .def("__init__",
           [](ShortDeadlineDetector* self, double deadline_max) {
             new (self) ShortDeadlineDetector(FromSeconds(deadline_max));
           })
      .def(
          "add",
          [](ShortDeadlineDetector& self, const std::string& collective, double needed,
             double missing_contributions, double missing_results) {
            CallStats stats;
            stats.missing_contributions = missing_contributions;
            stats.missing_results = missing_results;
            stats.deadline_needed = FromSeconds(needed);
            std::optional<MonitorEvent> event;
            if (auto told = self.Add(collective, stats)) event = std::move(*told);
            return ToObject(event);
          },
          "collective"_a, "needed"_a, "missing_contributions"_a, "missing_results"_a = 0.0);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
