// The choice of the wire format "auto".

#include "ffi/protocol/collective/format_controller.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

std::string Choose(FormatController& controller, double now, double wire_s, std::uint64_t bytes) {
  return std::string(NameOf(controller.Choose(At(now), FromSeconds(wire_s), bytes)));
}

void Bind(nb::module_& m) {
  nb::class_<FormatController>(m, "FormatController")
      .def(nb::init<>())
      .def("choose", &Choose, "now"_a, "wire_s"_a, "bytes"_a = 1000)
      .def_prop_ro("format", [](const FormatController& controller) {
        return std::string(NameOf(controller.format()));
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
