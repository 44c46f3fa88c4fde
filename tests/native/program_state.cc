// A call as the local program sees it.

#include "ffi/protocol/call/program_state.h"

#include <nanobind/nanobind.h>

#include <cstdint>

#include "tests/native/binding.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<ProgramState>(m, "ProgramState")
      .def(nb::init<>())
      .def(
          "submit",
          [](ProgramState& self, double now, double held, std::uint64_t token,
             std::uint32_t skipped) {
            Submission submission;
            submission.pending_for = FromSeconds(held);
            submission.token = token;
            submission.skipped = skipped;
            self.Submit(At(now), submission);
          },
          "now"_a, "held"_a = 0.0, "token"_a = 0, "skipped"_a = 0)
      .def("abandon", &ProgramState::Abandon)
      .def("finish", &ProgramState::Finish)
      .def("merge", &ProgramState::Merge)
      .def_prop_ro("uncalled", &ProgramState::uncalled)
      .def_prop_ro("abandoned", &ProgramState::abandoned)
      .def_prop_ro("submitted", &ProgramState::submitted)
      .def_prop_ro("running", &ProgramState::running)
      .def_prop_ro("finished", &ProgramState::finished)
      .def_prop_ro("merged", &ProgramState::merged)
      .def_prop_ro("over", &ProgramState::over)
      .def_prop_ro("submitted_at",
                   [](const ProgramState& self) { return ToSeconds(self.submitted_at()); })
      .def_prop_ro("called_at",
                   [](const ProgramState& self) { return ToSeconds(self.called_at()); })
      .def_prop_ro("token", &ProgramState::token)
      .def_prop_ro("skipped", &ProgramState::skipped);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
