// The calls that a member has given up.

#include "ffi/protocol/collective/given_up.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// (first, last, whether the ranks disagreed)
using Interval = std::tuple<std::uint32_t, std::uint32_t, bool>;

Interval ToTuple(const GivenUpCalls::Interval& of) {
  return {of.first.value(), of.last.value(), of.disagreed};
}

void Bind(nb::module_& m) {
  nb::class_<GivenUpCalls>(m, "GivenUpCalls")
      .def(nb::init<>())
      .def(
          "add",
          [](GivenUpCalls& self, std::uint32_t first, std::uint32_t last, bool disagreed,
             const std::string& why) {
            return ToTuple(
                self.Add({.first = Sequence(first), .last = Sequence(last), .disagreed = disagreed},
                         Status(StatusCode::kAborted, why)));
          },
          "first"_a, "last"_a, "disagreed"_a = false, "why"_a = "")
      .def("find",
           [](const GivenUpCalls& self, std::uint32_t call) -> std::optional<Interval> {
             const GivenUpCalls::Interval* const found = self.Find(Sequence(call));
             return found == nullptr ? std::nullopt : std::optional(ToTuple(*found));
           })
      .def_prop_ro("why", [](const GivenUpCalls& self) { return self.why().message(); });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
