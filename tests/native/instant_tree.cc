// The tree of instants.

#include "ffi/base/instant_tree.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstddef>
#include <cstdint>

#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace {

void Bind(nb::module_& m) {
  const auto at = [](std::int64_t ns) { return Instant{} + Duration(ns); };
  nb::class_<InstantTree>(m, "InstantTree")
      .def(
          "__init__",
          [=](InstantTree* self, std::size_t size, std::int64_t ns) {
            new (self) InstantTree(size, at(ns));
          },
          nb::arg("size"), nb::arg("at"))
      .def("__getitem__", [](const InstantTree& self,
                             std::size_t index) { return (self[index] - Instant{}).count(); })
      .def("set",
           [=](InstantTree& self, std::size_t index, std::int64_t ns) { self.Set(index, at(ns)); })
      .def("first_before", [=](const InstantTree& self, std::int64_t ns, std::size_t from) {
        return self.FirstBefore(at(ns), from);
      });
}

const Binding binding(&Bind);

}  // namespace
}  // namespace optireduce::testing
