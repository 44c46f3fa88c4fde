// Paths that lose long datagrams.

#include "ffi/protocol/path/black_hole_detector.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// (lost, delivered) lengths, or nothing.
std::optional<std::pair<std::size_t, std::size_t>> Find(const BlackHoleDetector& self,
                                                        double patience) {
  const std::optional<BlackHole> hole = self.Find(FromSeconds(patience));
  if (!hole) return std::nullopt;
  return std::pair(hole->lost_bytes, hole->delivered_bytes);
}

void Bind(nb::module_& m) {
  nb::class_<BlackHoleDetector>(m, "BlackHoleDetector")
      .def(nb::init<>())
      .def("lost", [](BlackHoleDetector& self, double now,
                      std::size_t bytes) { self.Lost(At(now), bytes); })
      .def("delivered", &BlackHoleDetector::Delivered)
      .def("sent", [](BlackHoleDetector& self, double now, std::size_t bytes,
                      double interval) { self.Sent(At(now), bytes, FromSeconds(interval)); })
      .def("blocks", [](BlackHoleDetector& self, double now,
                        std::size_t bytes) { return self.Blocks(At(now), bytes); })
      .def("handle_timeout",
           [](BlackHoleDetector& self, double now) { self.HandleTimeout(At(now)); })
      .def("find", &Find)
      .def_prop_ro("trials", &BlackHoleDetector::trials)
      .def_prop_ro("timeout",
                   [](const BlackHoleDetector& self) { return ToSeconds(self.timeout()); });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
