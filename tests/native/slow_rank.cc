// The detection of slow ranks.

#include "ffi/runtime/slow_rank.h"

#include "ffi/bind/event_dict.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<SlowRankDetector>(m, "SlowRankDetector")
      .def(nb::init<>())
      .def(
          "add",
          [](SlowRankDetector& self, const std::string& collective, double end,
             std::uint16_t slowest, double behind, double elapsed,
             const std::vector<std::uint16_t>& absent, bool passed) {
            const CallStats stats{.elapsed = FromSeconds(elapsed),
                                  .slowest = Rank(slowest),
                                  .behind = FromSeconds(behind),
                                  .absent = {absent.begin(), absent.end()},
                                  .passed = passed};
            std::optional<MonitorEvent> event;
            if (auto told = self.Add(collective, stats, At(end))) event = std::move(*told);
            return ToObject(event);
          },
          "collective"_a, "end"_a, "slowest"_a, "behind"_a, "elapsed"_a,
          "absent"_a = std::vector<std::uint16_t>(), "passed"_a = false)
      .def("forget", [](SlowRankDetector& self, std::uint16_t rank) { self.Forget(Rank(rank)); });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
