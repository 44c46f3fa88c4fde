// The totals of the calls of each collective.

#include "ffi/runtime/collective_totals.h"

#include "ffi/bind/event_dict.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<CollectiveTotals>(m, "CollectiveTotals")
      .def(nb::init<>())
      .def(
          "add",
          [](CollectiveTotals& self, const std::string& name, std::int64_t elapsed_ns,
             std::uint64_t bytes, double missing) {
            CallRecord call;
            call.collective = name;
            call.elapsed = Duration(elapsed_ns);
            call.bytes = bytes;
            call.stats.missing_contributions = missing;
            self.Add(call);
          },
          "name"_a, "elapsed_ns"_a, "bytes"_a = 0, "missing"_a = 0.0)
      .def("values", [](const CollectiveTotals& self) { return ToDict(self.Values()); });
  m.attr("OBSERVED_MAX") = kObservedMax;
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
