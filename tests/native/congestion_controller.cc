// The congestion controller.

#include "ffi/protocol/path/congestion_controller.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

class TestCongestionController {
 public:
  TestCongestionController(std::size_t window_bytes_max, std::size_t datagram_bytes_max,
                           std::size_t sharers, bool same_host)
      : controller_({.window_bytes_max = window_bytes_max,
                     .datagram_bytes_max = datagram_bytes_max,
                     .sharers = sharers,
                     .paths = &paths_,
                     .same_host = same_host}) {}

  // A round trip of another path of this rank.
  void RecordOtherPath(double now, double shortest) {
    paths_.Record(At(now), shortest * 1e9, /*keep=*/false);
  }

  void HandleRoundTrip(double now, double elapsed, double shortest, std::size_t delivered,
                       std::size_t lost, bool limited) {
    controller_.HandleRoundTrip(At(now), {.elapsed = FromSeconds(elapsed),
                                          .shortest = FromSeconds(shortest),
                                          .delivered_bytes = delivered,
                                          .lost_bytes = lost,
                                          .limited = limited});
  }
  void HandleSilence() { controller_.HandleSilence(); }
  void SetSharers(std::size_t sharers, std::size_t window_bytes_max) {
    controller_.SetSharers(sharers, window_bytes_max);
  }
  std::size_t WindowBytes() const { return controller_.window_bytes(); }
  std::size_t ShareBytes() const { return controller_.share_bytes(); }
  std::size_t BurstBytes() const { return controller_.BurstBytes(); }
  double PacingInterval(std::size_t bytes) const {
    return ToSeconds(controller_.PacingInterval(bytes));
  }

 private:
  WindowedMin paths_;
  CongestionController controller_;
};

void Bind(nb::module_& m) {
  nb::class_<TestCongestionController>(m, "CongestionController")
      .def(nb::init<std::size_t, std::size_t, std::size_t, bool>(), "window_bytes_max"_a,
           "datagram_bytes_max"_a = 1472, "sharers"_a = 1, "same_host"_a = false)
      .def("handle_round_trip", &TestCongestionController::HandleRoundTrip, "now"_a, "elapsed"_a,
           "shortest"_a, "delivered"_a, "lost"_a = 0, "limited"_a = true)
      .def("note_other_path", &TestCongestionController::RecordOtherPath, "now"_a, "shortest"_a)
      .def("handle_silence", &TestCongestionController::HandleSilence)
      .def("set_sharers", &TestCongestionController::SetSharers, "sharers"_a, "window_bytes_max"_a)
      .def("window_bytes", &TestCongestionController::WindowBytes)
      .def("share_bytes", &TestCongestionController::ShareBytes)
      .def("burst_bytes", &TestCongestionController::BurstBytes)
      .def("pacing_interval", &TestCongestionController::PacingInterval);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
