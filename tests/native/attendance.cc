// The positions of the members among the calls.

#include "ffi/protocol/collective/attendance.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<Attendance>(m, "Attendance")
      .def(nb::init<std::size_t>(), "members"_a)
      .def("note",
           [](Attendance& self, std::uint16_t from, std::uint32_t call) {
             return self.Record(MemberIndex(from), Sequence(call));
           })
      .def("note_past",
           [](Attendance& self, std::uint16_t from, std::uint32_t call) {
             return self.RecordPast(MemberIndex(from), Sequence(call));
           })
      .def("asks_in_vain",
           [](Attendance& self, std::uint16_t from, std::uint32_t call) {
             return self.AsksInVain(MemberIndex(from), Sequence(call));
           })
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
