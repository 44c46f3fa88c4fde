// What is known of ranks that are behind, for tests: the window of calls on both sides, how long
// answers take, where members are among the calls.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/bind/testing.h"
#include "ffi/protocol/answer_time.h"
#include "ffi/protocol/attendance.h"
#include "ffi/protocol/call_window.h"

namespace nb = nanobind;

namespace optireduce {

void BindCarry(nb::module_& m) {
  nb::class_<SendWindow>(m, "SendWindow")
      .def(nb::init<std::uint32_t>(), nb::arg("max_lag"))
      .def("may_begin",
           [](const SendWindow& self, std::uint32_t call) { return self.MayBegin(Sequence(call)); })
      .def("begin", [](SendWindow& self, std::uint32_t call) { self.Begin(Sequence(call)); })
      .def("begun",
           [](const SendWindow& self, std::uint32_t call) { return self.Begun(Sequence(call)); })
      .def("settle", [](SendWindow& self, std::uint32_t call) { self.Settle(Sequence(call)); })
      .def("settled", &SendWindow::settled)
      .def("lags",
           [](const SendWindow& self, std::uint32_t call) { return self.Lags(Sequence(call)); });
  nb::class_<CallHistory> history(m, "CallHistory");
  nb::enum_<CallHistory::Receipt>(history, "Receipt")
      .value("NEW", CallHistory::Receipt::kNew)
      .value("DUPLICATE", CallHistory::Receipt::kDuplicate)
      .value("STALE", CallHistory::Receipt::kStale);
  history.def(nb::init<std::uint32_t>(), nb::arg("max_lag"))
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
  const auto length = [](double seconds) {
    return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
  };
  nb::class_<AnswerTime>(m, "AnswerTime")
      .def(nb::init<>())
      .def("note",
           [length](AnswerTime& self, double now, double gap, double peer_timeout) {
             self.Note(Instant(length(now)), length(gap), length(peer_timeout));
           })
      .def("patience", [length](const AnswerTime& self, double peer_timeout) {
        return std::chrono::duration<double>(self.Patience(length(peer_timeout))).count();
      });
  nb::class_<Attendance>(m, "Attendance")
      .def(nb::init<std::size_t>(), nb::arg("members"))
      .def("note", [](Attendance& self, std::uint16_t from,
                      std::uint32_t call) { return self.Note(MemberIndex(from), Sequence(call)); })
      .def("end_call",
           [](Attendance& self, const std::vector<bool>& heard) { self.EndCall(heard); })
      .def("absent", [](const Attendance& self,
                        std::uint16_t member) { return self.Absent(MemberIndex(member)); })
      .def("past", [](const Attendance& self, std::uint16_t member, std::uint32_t call) {
        return self.Past(MemberIndex(member), Sequence(call));
      });
}

}  // namespace optireduce
