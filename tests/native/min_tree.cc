// The tree of instants.

#include "ffi/base/min_tree.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  const auto at = [](std::int64_t ns) { return Instant{} + Duration(ns); };
  nb::class_<MinTree>(m, "MinTree")
      .def(
          "__init__",
          [=](MinTree* self, std::size_t size, std::int64_t ns) {
            new (self) MinTree(size, at(ns));
          },
          "size"_a, "at"_a)
      .def("__getitem__",
           [](const MinTree& self, std::size_t index) { return (self[index] - Instant{}).count(); })
      .def("set",
           [=](MinTree& self, std::size_t index, std::int64_t ns) { self.Set(index, at(ns)); })
      .def("first_before", [=](const MinTree& self, std::int64_t ns, std::size_t from) {
        return self.FirstBefore(at(ns), from);
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
