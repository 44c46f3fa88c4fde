// The detection of deadlines that are too short.

#include "ffi/runtime/short_deadline.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include "ffi/bind/watch_dict.h"
#include "tests/native/binding.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace optireduce::testing {
namespace {

void Bind(nb::module_& m) {
  nb::class_<ShortDeadlineWatch>(m, "ShortDeadlineWatch")
      .def("__init__",
           [](ShortDeadlineWatch* self, double deadline_max) {
             new (self) ShortDeadlineWatch(FromSeconds(deadline_max));
           })
      .def(
          "add",
          [](ShortDeadlineWatch& self, const std::string& collective, double needed,
             double missing_contributions, double missing_results) {
            CallStats stats;
            stats.missing_contributions = missing_contributions;
            stats.missing_results = missing_results;
            stats.deadline_needed = FromSeconds(needed);
            std::optional<WatchNews> news;
            if (auto told = self.Add(collective, stats)) news = std::move(*told);
            return ToObject(news);
          },
          "collective"_a, "needed"_a, "missing_contributions"_a, "missing_results"_a = 0.0);
}

const Binding binding(&Bind);

}  // namespace
}  // namespace optireduce::testing
