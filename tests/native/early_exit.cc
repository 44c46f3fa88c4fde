// The early exit of a stage, and the encoding of durations.

#include "ffi/protocol/deadline/early_exit.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::enum_<StageExit>(m, "StageExit")
      .value("COMPLETE", StageExit::kComplete)
      .value("EXPIRED", StageExit::kExpired)
      .value("EARLY", StageExit::kEarly);
  nb::class_<EarlyExit>(m, "EarlyExit")
      .def(
          "__init__",
          [](EarlyExit* self, double bound_s, std::size_t members, std::size_t own) {
            new (self) EarlyExit(FromSeconds(bound_s), members, own);
          },
          "bound_s"_a, "members"_a, "own"_a)
      .def(
          "end_stage",
          [](EarlyExit& self, StageExit exit, double elapsed, std::uint64_t received_bytes,
             std::uint64_t expected_bytes, double idle) {
            return ToSeconds(self.EndStage({.exit = exit,
                                            .elapsed = FromSeconds(elapsed),
                                            .idle = FromSeconds(idle),
                                            .received_bytes = received_bytes,
                                            .expected_bytes = expected_bytes}));
          },
          "exit"_a, "elapsed"_a, "received_bytes"_a, "expected_bytes"_a, "idle"_a = 0.0)
      .def("came_late", &EarlyExit::CameLate)
      .def(
          "told",
          [](EarlyExit& self, std::size_t member, std::optional<double> sample) {
            self.Told(member, sample ? std::optional(FromSeconds(*sample)) : std::nullopt);
          },
          "member"_a, "sample"_a.none())
      .def("calibrated", &EarlyExit::calibrated)
      .def("hard_bound", [](const EarlyExit& self) { return ToSeconds(self.hard_bound()); })
      .def("early_bound", [](const EarlyExit& self) { return ToSeconds(self.early_bound()); })
      .def("grace_fraction", &EarlyExit::grace_fraction)
      .def("grace", [](const EarlyExit& self) { return ToSeconds(self.grace()); });
  m.def(
      "encode_duration",
      [](std::optional<std::int64_t> ns) {
        return EncodeDuration(ns ? std::optional(Duration(*ns)) : std::nullopt);
      },
      "ns"_a.none());
  m.def("decode_duration", [](std::uint16_t code) {
    const std::optional<Duration> duration = DecodeDuration(code);
    return duration ? std::optional(duration->count()) : std::nullopt;
  });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
