// The round-trip time to one peer.

#include "ffi/protocol/path/rtt_estimator.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

std::optional<double> Smoothed(const RttEstimator& estimator) {
  if (!estimator.smoothed()) return std::nullopt;
  return ToSeconds(*estimator.smoothed());
}

void Bind(nb::module_& m) {
  nb::class_<RttEstimator>(m, "RttEstimator")
      .def(nb::init<>())
      .def("measure", [](RttEstimator& estimator, double s) { estimator.Measure(FromSeconds(s)); })
      .def_prop_ro("smoothed", &Smoothed)
      .def(
          "longest",
          [](const RttEstimator& estimator, double granularity) {
            return ToSeconds(estimator.Longest(FromSeconds(granularity)));
          },
          "granularity"_a);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
