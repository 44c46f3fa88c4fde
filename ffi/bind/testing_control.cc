// The controllers for tests: deadlines, early exits. Times in seconds.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "ffi/bind/testing.h"
#include "ffi/protocol/deadline/deadline_controller.h"
#include "ffi/protocol/deadline/early_exit.h"

namespace nb = nanobind;

namespace optireduce {
namespace {

Duration FromSeconds(double seconds) {
  return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}

double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

void BindDeadlineController(nb::module_& m) {
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
          nb::arg("late_budget"), nb::arg("bound_s"), nb::arg("latency_s"), nb::arg("sources"),
          nb::arg("waits_for_stragglers"))
      .def("begin_call", &DeadlineController::BeginCall)
      .def("began", [](DeadlineController& self, std::size_t source,
                       double after_opening) { self.Began(source, FromSeconds(after_opening)); })
      .def("arrived",
           [](DeadlineController& self, std::size_t source, double after_opening,
              double after_beginning, double share) {
             self.Arrived(source, FromSeconds(after_opening), FromSeconds(after_beginning), share);
           })
      .def("deadline", [](const DeadlineController& self) { return ToSeconds(self.deadline()); })
      .def("unbounded", [](const DeadlineController& self) { return ToSeconds(self.unbounded()); })
      .def("calibrated", &DeadlineController::calibrated);
}

void BindEarlyExit(nb::module_& m) {
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
          nb::arg("bound_s"), nb::arg("members"), nb::arg("own"))
      .def("end_stage",
           [](EarlyExit& self, StageExit exit, double elapsed, std::uint64_t received_bytes,
              std::uint64_t expected_bytes) {
             return ToSeconds(self.EndStage({.exit = exit,
                                             .elapsed = FromSeconds(elapsed),
                                             .received_bytes = received_bytes,
                                             .expected_bytes = expected_bytes}));
           })
      .def(
          "told",
          [](EarlyExit& self, std::size_t member, std::optional<double> sample) {
            self.Told(member, sample ? std::optional(FromSeconds(*sample)) : std::nullopt);
          },
          nb::arg("member"), nb::arg("sample").none())
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
      nb::arg("ns").none());
  m.def("decode_duration", [](std::uint16_t code) {
    const std::optional<Duration> duration = DecodeDuration(code);
    return duration ? std::optional(duration->count()) : std::nullopt;
  });
}

}  // namespace

void BindControl(nb::module_& m) {
  BindDeadlineController(m);
  BindEarlyExit(m);
}

}  // namespace optireduce
