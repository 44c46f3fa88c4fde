// The deadline controller.

#include "ffi/protocol/deadline/deadline_controller.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<DeadlineController>(m, "DeadlineController")
      .def(
          "__init__",
          [](DeadlineController* self, double late_budget, double bound_s, double latency_s,
             std::size_t sources, bool waits_for_stragglers) {
            new (self) DeadlineController({.late_budget = late_budget,
                                           .bound = FromSeconds(bound_s),
                                           .latency = FromSeconds(latency_s),
                                           .waits_for_stragglers = waits_for_stragglers},
                                          sources);
          },
          "late_budget"_a, "bound_s"_a, "latency_s"_a, "sources"_a, "waits_for_stragglers"_a)
      .def("continue_from", &DeadlineController::ContinueFrom)
      .def(
          "begin_call", [](DeadlineController& self, double now) { self.BeginCall(At(now)); },
          "now"_a = 0.0)
      .def("began", [](DeadlineController& self, std::size_t source,
                       double after_opening) { self.Began(source, FromSeconds(after_opening)); })
      .def("arrived",
           [](DeadlineController& self, std::size_t source, double after_opening,
              double after_beginning, double share) {
             self.Arrived(source, FromSeconds(after_opening), FromSeconds(after_beginning), share);
           })
      .def("deadline", [](const DeadlineController& self) { return ToSeconds(self.deadline()); })
      .def("unbounded", [](const DeadlineController& self) { return ToSeconds(self.unbounded()); })
      .def("straggles", &DeadlineController::straggles)
      .def("calibrated", &DeadlineController::calibrated);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
