// The window of calls, at the sender and at the receiver.

#include "ffi/protocol/collective/call_window.h"

#include "ffi/base/bitmap.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<SendWindow>(m, "SendWindow")
      .def(nb::init<std::uint32_t>(), "max_lag"_a)
      .def("may_begin",
           [](const SendWindow& self, std::uint32_t call) { return self.MayBegin(Sequence(call)); })
      .def("begin", [](SendWindow& self, std::uint32_t call) { self.Begin(Sequence(call)); })
      .def("begun",
           [](const SendWindow& self, std::uint32_t call) { return self.Begun(Sequence(call)); })
      .def("deliver", [](SendWindow& self, std::uint32_t call) { self.Deliver(Sequence(call)); })
      .def("all_delivered", &SendWindow::all_delivered)
      .def("lags",
           [](const SendWindow& self, std::uint32_t call) { return self.Lags(Sequence(call)); });
  nb::class_<CallHistory> history(m, "CallHistory");
  nb::enum_<Receipt>(history, "Receipt")
      .value("NEW", Receipt::kNew)
      .value("DUPLICATE", Receipt::kDuplicate)
      .value("STALE", Receipt::kStale);
  history.def(nb::init<std::uint32_t>(), "max_lag"_a)
      .def("take", [](CallHistory& self, std::uint32_t call, std::size_t within,
                      std::size_t segments) { return self.Take(Sequence(call), within, segments); })
      .def("remember",
           [](CallHistory& self, std::uint32_t call, const std::vector<bool>& received) {
             Bitmap bitmap(received.size());
             for (std::size_t i = 0; i < received.size(); ++i) {
               if (received[i]) bitmap.Insert(i);
             }
             self.Remember(Sequence(call), std::move(bitmap));
           });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
