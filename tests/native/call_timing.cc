// The closing times of the stages of a collective's calls.

#include "ffi/protocol/deadline/call_timing.h"

#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace optireduce::testing {
namespace OR_FILE {

Stage StageOf(int stage) { return stage == 0 ? Stage::kReduceScatter : Stage::kAllGather; }

void Bind(nb::module_& m) {
  // The timing of member 0.
  nb::class_<CallTiming>(m, "CallTiming")
      .def(
          "__init__",
          [](CallTiming* self, const Collective& collective, double late_budget, bool goes_on) {
            new (self) CallTiming(collective.ToSpec(), MemberIndex(0), late_budget, goes_on);
          },
          "collective"_a, "late_budget"_a = 0.0, "goes_on"_a = false)
      .def(
          "open", [](CallTiming& self, double now) { self.Open(At(now)); }, "now"_a = 0.0)
      .def_prop_ro("reduce_scatter_deadline",
                   [](const CallTiming& self) { return ToSeconds(self.reduce_scatter_deadline()); })
      .def_prop_ro("call_deadline",
                   [](const CallTiming& self) { return ToSeconds(self.call_deadline()); })
      .def_prop_ro("deadline_needed",
                   [](const CallTiming& self) { return ToSeconds(self.deadline_needed()); })
      .def_prop_ro("calibrating", &CallTiming::calibrating)
      .def("arrived",
           [](CallTiming& self, int stage, std::uint16_t source, double after_opening) {
             self.Began(StageOf(stage), MemberIndex(source), Duration(0));
             self.Arrived(StageOf(stage), MemberIndex(source), FromSeconds(after_opening),
                          FromSeconds(after_opening), 1.0);
           })
      .def("ended",
           [](CallTiming& self, int stage, double elapsed) {
             self.Ended(StageOf(stage), {.exit = StageExit::kComplete,
                                         .elapsed = FromSeconds(elapsed),
                                         .received_bytes = 100,
                                         .expected_bytes = 100});
           })
      .def("sample_for", [](const CallTiming& self, std::uint32_t call, std::uint32_t segment) {
        return self.SampleFor({.collective = {}, .sequence = Sequence(call)},
                              SegmentIndex(segment));
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
