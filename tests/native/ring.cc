// The ring, of int.

#include "ffi/base/ring.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<Ring<int>>(m, "Ring")
      .def(nb::init<>())
      .def("push_back", &Ring<int>::push_back)
      .def("push_front", &Ring<int>::push_front)
      .def("pop_front", &Ring<int>::pop_front)
      .def("clear", &Ring<int>::clear)
      .def("values", [](const Ring<int>& self) {
        std::vector<int> values;
        for (std::size_t i = 0; i < self.size(); ++i) values.push_back(self[i]);
        return values;
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
