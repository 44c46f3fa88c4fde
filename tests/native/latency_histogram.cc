// The share of the data by arrival time.

#include "ffi/protocol/deadline/latency_histogram.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<LatencyHistogram>(m, "LatencyHistogram")
      .def(nb::init<>())
      .def(
          "add",
          [](LatencyHistogram& self, double latency, double weight) {
            self.Add(FromSeconds(latency), weight);
          },
          "latency"_a, "weight"_a = 1.0)
      .def("add_all",
           [](LatencyHistogram& self, const LatencyHistogram& other) { self.Add(other); })
      .def("fade", &LatencyHistogram::Fade)
      .def("forget_beyond",
           [](LatencyHistogram& self, double latency) { self.ForgetBeyond(FromSeconds(latency)); })
      .def("clear", &LatencyHistogram::Clear)
      .def("exceeded_by", [](const LatencyHistogram& self,
                             double share) { return ToSeconds(self.ExceededBy(share)); })
      .def("weight_beyond", [](const LatencyHistogram& self,
                               double latency) { return self.WeightBeyond(FromSeconds(latency)); })
      .def_prop_ro("total", &LatencyHistogram::total);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
