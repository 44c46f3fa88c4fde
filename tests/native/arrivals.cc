// Arrival times of the data of each member.

#include "ffi/protocol/call/arrivals.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<Arrivals>(m, "Arrivals")
      .def("__init__",
           [](Arrivals* self, std::uint16_t member, std::uint16_t members) {
             new (self) Arrivals(MemberIndex(member), members);
           })
      .def("note", [](Arrivals& self, double now,
                      std::uint16_t from) { self.Record(At(now), MemberIndex(from)); })
      .def("find_last",
           [](const Arrivals& self, std::size_t count) {
             std::vector<std::pair<std::uint16_t, double>> last;
             for (const auto& [member, at] : self.FindLast(count)) {
               last.emplace_back(static_cast<std::uint16_t>(member.index()),
                                 ToSeconds(at.time_since_epoch()));
             }
             return last;
           })
      // (member, behind, absent)
      .def("find_latest", [](const Arrivals& self, double submitted_at, double now) {
        const Arrivals::Latest latest = self.FindLatest(At(submitted_at), At(now));
        return std::make_tuple(latest.member.index(), ToSeconds(latest.behind),
                               self.Absent(latest.member));
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
