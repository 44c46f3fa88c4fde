// The collectives that a process has called.

#include "ffi/runtime/called_collectives.h"

#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<CalledCollectives>(m, "CalledCollectives")
      .def(nb::init<>())
      .def("note", [](CalledCollectives& self, const std::string& key,
                      const Collective& collective) { self.Record(key, collective.ToSpec()); })
      // The error; empty if there is none.
      .def(
          "check",
          [](const CalledCollectives& self, const std::string& key, const Collective& drain,
             bool if_any) { return self.Check(key, drain.ToSpec(), if_any).message(); },
          "key"_a, "drain"_a, "if_any"_a = false);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
