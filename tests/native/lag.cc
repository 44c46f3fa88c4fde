// Ranks that lag: response times, and the positions of members among the calls.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ffi/protocol/call/attendance.h"
#include "ffi/protocol/session/answer_time.h"
#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<AnswerTime>(m, "AnswerTime")
      .def(nb::init<>())
      .def("note",
           [](AnswerTime& self, double now, double gap, double peer_timeout) {
             self.Note(At(now), FromSeconds(gap), FromSeconds(peer_timeout));
           })
      .def("patience", [](const AnswerTime& self, double peer_timeout) {
        return ToSeconds(self.Patience(FromSeconds(peer_timeout)));
      });
  nb::class_<Attendance>(m, "Attendance")
      .def(nb::init<std::size_t>(), nb::arg("members"))
      .def("note", [](Attendance& self, std::uint16_t from,
                      std::uint32_t call) { return self.Note(MemberIndex(from), Sequence(call)); })
      .def("end_call",
           [](Attendance& self, const std::vector<bool>& heard) {
             self.EndCall([&heard](MemberIndex member) { return heard[member.index()]; });
           })
      .def("absent", [](const Attendance& self,
                        std::uint16_t member) { return self.Absent(MemberIndex(member)); })
      .def("past", [](const Attendance& self, std::uint16_t member, std::uint32_t call) {
        return self.Past(MemberIndex(member), Sequence(call));
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
