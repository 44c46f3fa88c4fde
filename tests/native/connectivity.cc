// Which members reach each other, as one rank knows it.

#include "ffi/protocol/membership/connectivity.h"

#include "tests/native/binding.h"
#include "tests/native/membership_values.h"

namespace optireduce::testing {
namespace OR_FILE {

using Ranks = std::vector<std::uint16_t>;

void Bind(nb::module_& m) {
  nb::class_<Connectivity>(m, "Connectivity")
      .def(
          "__init__",
          [](Connectivity* self, std::uint16_t rank, std::uint16_t world_size, std::uint16_t lanes,
             double peer_timeout, double last_chance, std::uint16_t ranks_per_slice) {
            new (self) Connectivity(Rank(rank), world_size, lanes, FromSeconds(peer_timeout),
                                    FromSeconds(last_chance), Slices(ranks_per_slice));
          },
          "rank"_a, "world_size"_a, "lanes"_a, "peer_timeout_s"_a, "last_chance_s"_a,
          "ranks_per_slice"_a = 1)
      .def("hear", [](Connectivity& self, double now, std::uint16_t lane,
                      std::uint16_t rank) { return self.Hear(At(now), lane, Rank(rank)); })
      .def("suspect", [](Connectivity& self, std::uint16_t lane,
                         std::uint16_t rank) { return self.Suspect(lane, Rank(rank)); })
      .def("set_unusable", [](Connectivity& self, std::uint16_t lane, std::uint16_t rank,
                              bool unusable) { self.SetUnusable(lane, Rank(rank), unusable); })
      .def("suspect_silent",
           [](Connectivity& self, double now, double since, const Ranks& members) {
             self.SuspectSilent(At(now), At(since), RanksOf(members));
           })
      .def("handle_report",
           [](Connectivity& self, double now, std::uint16_t from, const Ranks& suspects) {
             self.HandleReport(At(now), Rank(from), RanksOf(suspects));
           })
      .def("clear_reports", &Connectivity::ClearReports)
      .def("reaches", [](const Connectivity& self, double now,
                         std::uint16_t rank) { return self.Reaches(At(now), Rank(rank)); })
      .def("in_doubt", [](const Connectivity& self, double now,
                          const Ranks& members) { return self.InDoubt(At(now), RanksOf(members)); })
      .def("is_parted",
           [](const Connectivity& self, double now, const Ranks& members) {
             return self.IsParted(At(now), RanksOf(members));
           })
      .def("whole_reached",
           [](const Connectivity& self, double now, const Ranks& members) {
             return ToInts(self.WholeReached(At(now), RanksOf(members)));
           })
      .def("suspected_by_any",
           [](const Connectivity& self, const Ranks& ranks) {
             return ToInts(self.SuspectedByAny(RanksOf(ranks)));
           })
      .def("suspects_among",
           [](const Connectivity& self, const Ranks& members) {
             return ToInts(self.SuspectsAmong(RanksOf(members)));
           })
      .def("is_partly_silent",
           [](const Connectivity& self, double now, std::uint16_t rank) {
             return self.IsPartlySilent(At(now), Rank(rank));
           })
      .def("lacks_evidence",
           [](const Connectivity& self, double now, const Ranks& members) {
             return self.LacksEvidence(At(now), RanksOf(members));
           })
      .def("agreeable", [](const Connectivity& self, double now, const Ranks& ranks) {
        return ToInts(self.Agreeable(At(now), RanksOf(ranks)));
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
