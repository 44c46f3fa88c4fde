// The deadline with the most progress per second.

#include "ffi/protocol/deadline/progress.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  m.def(
      "best_deadline",
      [](const LatencyHistogram& data, const LatencyHistogram& calls, double computation,
         double transfer, double least, double most) {
        const Waits waits{.data = data,
                          .calls = calls,
                          .computation = FromSeconds(computation),
                          .transfer = FromSeconds(transfer)};
        return ToSeconds(BestDeadline(waits, FromSeconds(least), FromSeconds(most)));
      },
      "data"_a, "calls"_a, nb::kw_only(), "computation"_a, "transfer"_a, "least"_a, "most"_a);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
