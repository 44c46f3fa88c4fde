// The incast controller.

#include "ffi/protocol/path/incast_controller.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<IncastController>(m, "IncastController")
      .def(nb::init<std::uint8_t>(), "most"_a)
      .def("handle_call", &IncastController::HandleCall, "expected"_a, "lost"_a)
      .def("incast", &IncastController::incast);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
