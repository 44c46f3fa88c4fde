// The agreement on members, at one rank.

#include "ffi/protocol/membership/membership.h"

#include <array>

#include "ffi/protocol/wire/membership_message.h"
#include "tests/native/binding.h"
#include "tests/native/membership_values.h"

namespace optireduce::testing {
namespace OR_FILE {

std::optional<std::pair<int, nb::bytes>> PollOf(Membership& self, double now, std::uint16_t lane) {
  std::array<std::byte, kMembershipBytesMax> out;
  const auto outgoing = self.Poll(At(now), lane, out);
  if (!outgoing) return std::nullopt;
  return std::pair(outgoing->to.value(), nb::bytes(out.data(), outgoing->bytes));
}

void Bind(nb::module_& m) {
  nb::class_<Membership>(m, "Membership")
      .def(
          "__init__",
          [](Membership* self, std::uint16_t rank, std::uint16_t world_size, double timeout_s,
             std::uint16_t lanes, std::uint16_t ranks_per_slice) {
            new (self) Membership(Rank(rank), world_size, FromSeconds(timeout_s), lanes,
                                  Slices(ranks_per_slice));
          },
          "rank"_a, "world_size"_a, "peer_timeout_s"_a, "lanes"_a = 1, "ranks_per_slice"_a = 1)
      .def_prop_ro("view",
                   [](const Membership& self) {
                     return std::tuple(self.view().number, ToInts(self.view().members),
                                       ToPairs(self.view().firsts));
                   })
      .def("first_of",
           [](const Membership& self, std::uint32_t collective) {
             return self.view().FirstOf(CollectiveId(collective)).value();
           })
      .def("members_of",
           [](const Membership& self, std::uint32_t collective, std::uint32_t sequence) {
             const View* view = &self.view();
             for (auto before = self.earlier().rbegin(); before != self.earlier().rend();
                  ++before) {
               if (Sequence(sequence) >= view->FirstOf(CollectiveId(collective))) break;
               view = &*before;
             }
             return ToInts(view->members);
           })
      .def_prop_ro("lost_with", [](const Membership& self) { return ToInts(self.lost_with()); })
      .def_prop_ro("removed", &Membership::removed)
      .def_prop_ro("stuck", &Membership::stuck)
      .def_prop_ro("frozen", &Membership::frozen)
      .def("connected", [](const Membership& self, double now) { return self.Connected(At(now)); })
      .def("try_start",
           [](Membership& self, std::uint32_t view, std::uint32_t bucket, std::uint32_t sequence) {
             const CollectiveId id(bucket);
             return self.TryStart(view, {.collective = id, .sequence = Sequence(sequence)}, id);
           })
      .def("heard", [](Membership& self, double now, std::uint16_t lane,
                       std::uint16_t rank) { self.Heard(At(now), lane, Rank(rank)); })
      .def("suspect", [](Membership& self, double now, std::uint16_t lane,
                         std::uint16_t rank) { self.Suspect(At(now), lane, Rank(rank)); })
      .def("handle",
           [](Membership& self, double now, std::uint16_t lane, std::uint16_t from,
              const nb::bytes& payload) {
             return self.Handle(At(now), lane, Rank(from), BytesOf(payload));
           })
      .def_prop_ro("changes", &Membership::changes)
      .def("handle_timeout", [](Membership& self, double now) { self.HandleTimeout(At(now)); })
      .def("timeout",
           [](const Membership& self) -> std::optional<double> {
             if (self.timeout() == kNever) return std::nullopt;
             return ToSeconds(self.timeout());
           })
      .def("poll", &PollOf);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
