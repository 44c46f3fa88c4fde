// Messages of the membership that are due. The test gives the calls of all messages.

#include "ffi/protocol/membership/membership_mailbox.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>
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

// (receiver, bytes) of the next message; `obsolete` kinds are not made.
std::optional<std::pair<int, nb::bytes>> PollOf(MembershipMailbox& self, std::uint16_t lane,
                                                const std::vector<Pair>& calls,
                                                const std::vector<int>& obsolete) {
  const std::vector<CallId> all = CallsOf(calls);
  std::array<std::byte, kMembershipBytesMax> out;
  const auto make = [&](Rank, MembershipKind kind) -> std::optional<MembershipMailbox::Draft> {
    for (const int each : obsolete) {
      if (each == static_cast<int>(kind)) return std::nullopt;
    }
    const bool decision = kind == MembershipKind::kDecision;
    return MembershipMailbox::Draft{
        {.kind = kind,
         .view = 1,
         .ballot = {.round = decision ? 0U : 1U, .coordinator = {}},
         .ranks = RanksOf(decision ? std::vector<std::uint16_t>{0} : std::vector<std::uint16_t>())},
        all};
  };
  const auto outgoing = self.Poll(lane, out, make);
  if (!outgoing) return std::nullopt;
  return std::pair(outgoing->to.value(), nb::bytes(out.data(), outgoing->bytes));
}

// The calls of the message that a part completes.
std::optional<std::vector<Pair>> AssembleOf(MembershipMailbox& self, std::uint16_t from,
                                            const nb::bytes& payload) {
  auto part = ParseMembership(BytesOf(payload), self.world_size());
  if (!part) throw nb::value_error("not a message");
  const auto message = self.Assemble(Rank(from), std::move(*part));
  if (!message) return std::nullopt;
  return ToPairs(message->calls);
}

void Bind(nb::module_& m) {
  nb::class_<MembershipMailbox>(m, "MembershipMailbox")
      .def("__init__",
           [](MembershipMailbox* self, std::uint16_t rank, std::uint16_t world_size,
              std::uint16_t lanes) { new (self) MembershipMailbox(Rank(rank), world_size, lanes); })
      .def("queue", [](MembershipMailbox& self, std::uint16_t lane, std::uint16_t to,
                       int kind) { self.Queue(lane, Rank(to), static_cast<MembershipKind>(kind)); })
      .def("queue_all",
           [](MembershipMailbox& self, const std::vector<std::uint16_t>& ranks, int kind) {
             self.QueueAll(RanksOf(ranks), static_cast<MembershipKind>(kind));
           })
      .def("queue_decision", [](MembershipMailbox& self, double now, std::uint16_t lane,
                                std::uint16_t to) { self.QueueDecision(At(now), lane, Rank(to)); })
      .def("poll", &PollOf, nb::arg("lane"), nb::arg("calls") = std::vector<Pair>(),
           nb::arg("obsolete") = std::vector<int>())
      .def("assemble", &AssembleOf)
      .def("clear", &MembershipMailbox::Clear);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
