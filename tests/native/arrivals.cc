// Arrival times of the data of each member.

#include "ffi/protocol/call/arrivals.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <tuple>

#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<Arrivals>(m, "Arrivals")
      .def("__init__",
           [](Arrivals* self, std::uint16_t member, std::uint16_t members) {
             new (self) Arrivals(MemberIndex(member), members);
           })
      .def("note", [](Arrivals& self, double now,
                      std::uint16_t from) { self.Note(At(now), MemberIndex(from)); })
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
