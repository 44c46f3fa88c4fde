// The last segments of a stage.

#include "ffi/protocol/call/last_segments.h"

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<LastSegments>(m, "LastSegments")
      .def(nb::init<std::size_t>(), nb::arg("members"))
      .def("expect",
           [](LastSegments& last, std::uint16_t member) { last.Await(MemberIndex(member)); })
      .def("see", [](LastSegments& last, std::uint16_t member) { last.See(MemberIndex(member)); })
      .def("note", [](LastSegments& last, double now) { last.Record(At(now)); })
      .def("last", [](const LastSegments& last) { return ToSeconds(last.last()); })
      .def("complete", &LastSegments::complete);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
