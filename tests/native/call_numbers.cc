// The calls of the other members, and the calls that a rank skips.

#include "ffi/protocol/collective/call_numbers.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

#include "ffi/protocol/membership/skipped_calls.h"
#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

std::optional<std::uint32_t> ValueOf(const std::optional<Sequence>& sequence) {
  return sequence ? std::optional(sequence->value()) : std::nullopt;
}

void Bind(nb::module_& m) {
  nb::class_<CallNumbers>(m, "CallNumbers")
      .def(nb::init<>())
      .def("note_called",
           [](CallNumbers& self, double now, std::uint16_t member, std::uint32_t call) {
             self.RecordCalled(At(now), Rank(member), Sequence(call));
           })
      .def("note_sum", [](CallNumbers& self, double now,
                          std::uint32_t call) { self.RecordSum(At(now), Sequence(call)); })
      .def("may_wait",
           [](const CallNumbers& self, std::uint32_t call) { return self.MayWait(Sequence(call)); })
      .def(
          "begin",
          [](CallNumbers& self, std::uint32_t call, bool behind) {
            self.Begin(Sequence(call), behind);
          },
          nb::arg("call"), nb::arg("behind"))
      .def("newest", [](const CallNumbers& self) { return ValueOf(self.newest()); })
      .def("next_due", [](const CallNumbers& self) { return ToSeconds(self.NextDue()); })
      .def("begin_drain",
           [](CallNumbers& self, std::uint32_t number) { self.BeginDrain(Sequence(number)); })
      .def("note_draining",
           [](CallNumbers& self, std::uint16_t member, std::uint32_t least) {
             self.RecordDraining(Rank(member), Sequence(least));
           })
      .def("draining", [](const CallNumbers& self,
                          std::uint16_t member) { return ValueOf(self.Draining(Rank(member))); })
      .def("note_begun",
           [](CallNumbers& self, std::uint32_t drain) { self.RecordBegun(Sequence(drain)); })
      .def("begun", [](const CallNumbers& self) { return ValueOf(self.begun()); });

  nb::class_<SkippedCalls>(m, "SkippedCalls")
      .def(nb::init<>())
      .def("of", [](const SkippedCalls& self,
                    std::uint32_t bucket) { return self.Of(CollectiveId(bucket)); })
      .def("begin", [](SkippedCalls& self, std::uint32_t bucket, std::uint32_t position,
                       std::uint32_t number) {
        return self.Begin(CollectiveId(bucket), Sequence(position), Sequence(number));
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
