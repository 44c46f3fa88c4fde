// One decision of a view at one rank.

#include "ffi/protocol/membership/paxos.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tests/native/binding.h"
#include "tests/native/membership_values.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

// The members and the first calls.
using ProposalPair = std::pair<std::vector<std::uint16_t>, std::vector<Pair>>;

Proposal ProposalOf(const ProposalPair& values) {
  return {.members = RanksOf(values.first), .firsts = CallsOf(values.second)};
}
std::pair<std::vector<int>, std::vector<Pair>> ValuesOf(const Proposal& proposal) {
  return {ToInts(proposal.members), ToPairs(proposal.firsts)};
}

void Bind(nb::module_& m) {
  nb::class_<Paxos>(m, "Paxos")
      .def("__init__", [](Paxos* self, std::uint16_t rank,
                          std::size_t members) { new (self) Paxos(Rank(rank), members); })
      .def_prop_ro("ballot", [](const Paxos& self) { return ToPair(self.ballot()); })
      .def_prop_ro("frozen", &Paxos::frozen)
      .def_prop_ro("coordinates", &Paxos::coordinates)
      .def_prop_ro("has_votes", &Paxos::HasVotes)
      .def_prop_ro("is_decided", &Paxos::IsDecided)
      .def_prop_ro("accepted", [](const Paxos& self) { return ValuesOf(self.accepted()); })
      .def("promise", [](Paxos& self, Pair ballot) { self.Promise(At(0), ToBallot(ballot)); })
      .def("prepare",
           [](Paxos& self, Pair ballot) { return self.Prepare(At(0), ToBallot(ballot)); })
      .def("accept",
           [](Paxos& self, Pair ballot, const ProposalPair& proposal) {
             return self.Accept(At(0), ToBallot(ballot), ProposalOf(proposal));
           })
      .def("bid",
           [](Paxos& self, const std::vector<Pair>& newest) { self.Bid(At(0), CallsOf(newest)); })
      .def("add_vote",
           [](Paxos& self, std::uint16_t from, Pair accepted, const ProposalPair& proposal) {
             self.AddVote(Rank(from),
                          {.accepted = ToBallot(accepted), .proposal = ProposalOf(proposal)});
           })
      .def("voters", [](const Paxos& self) { return ToInts(self.Voters()); })
      .def("find_accepted",
           [](const Paxos& self) {
             const std::optional<Proposal> found = self.FindAccepted();
             return found ? std::optional(ValuesOf(*found)) : std::nullopt;
           })
      .def("firsts_after_votes", [](const Paxos& self) { return ToPairs(self.FirstsAfterVotes()); })
      .def("propose",
           [](Paxos& self, const ProposalPair& proposal) { self.Propose(ProposalOf(proposal)); })
      .def("add_acceptance",
           [](Paxos& self, std::uint16_t from) { self.AddAcceptance(Rank(from)); })
      .def("has_answered",
           [](const Paxos& self, std::uint16_t member) { return self.HasAnswered(Rank(member)); });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
