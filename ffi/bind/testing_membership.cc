// The agreement on members for tests: one rank of it, and its messages. Times in seconds.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ffi/bind/testing.h"
#include "ffi/protocol/session/membership.h"
#include "ffi/protocol/wire/membership_message.h"

namespace nb = nanobind;

namespace optireduce {
namespace {

using Pair = std::pair<std::uint32_t, std::uint32_t>;

Duration FromSeconds(double seconds) {
  return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}

Instant At(double seconds) { return Instant(FromSeconds(seconds)); }

std::span<const std::byte> BytesOf(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

std::vector<int> ToInts(const std::vector<Rank>& ranks) {
  std::vector<int> values;
  for (const Rank rank : ranks) values.push_back(rank.value());
  return values;
}

std::vector<Pair> ToPairs(const std::vector<CallId>& calls) {
  std::vector<Pair> pairs;
  for (const CallId call : calls)
    pairs.emplace_back(call.collective.value(), call.sequence.value());
  return pairs;
}

Ballot ToBallot(Pair ballot) {
  return {.round = ballot.first, .coordinator = Rank(static_cast<std::uint16_t>(ballot.second))};
}

// (kind, asks, view, ballot, accepted, (part, parts), ranks, calls)
using MessageTuple = std::tuple<int, bool, std::uint32_t, Pair, Pair, std::pair<int, int>,
                                std::vector<int>, std::vector<Pair>>;

nb::bytes EncodeMembershipOf(const MessageTuple& fields) {
  const auto& [kind, asks, view, ballot, accepted, part, ranks, calls] = fields;
  MembershipMessage message{.kind = static_cast<MembershipKind>(kind),
                            .asks = asks,
                            .view = view,
                            .ballot = ToBallot(ballot),
                            .accepted = ToBallot(accepted),
                            .part = static_cast<std::uint16_t>(part.first),
                            .parts = static_cast<std::uint16_t>(part.second)};
  for (const int rank : ranks) message.ranks.emplace_back(static_cast<std::uint16_t>(rank));
  for (const auto& [collective, sequence] : calls) {
    message.calls.push_back(
        {.collective = CollectiveId(collective), .sequence = Sequence(sequence)});
  }
  std::array<std::byte, kMembershipBytesMax> bytes;
  return nb::bytes(bytes.data(), EncodeMembership(message, bytes));
}

std::optional<MessageTuple> ParseMembershipOf(const nb::bytes& bytes, std::uint16_t world_size) {
  const auto message = ParseMembership(BytesOf(bytes), world_size);
  if (!message) return std::nullopt;
  return MessageTuple(static_cast<int>(message->kind), message->asks, message->view,
                      {message->ballot.round, message->ballot.coordinator.value()},
                      {message->accepted.round, message->accepted.coordinator.value()},
                      {message->part, message->parts}, ToInts(message->ranks),
                      ToPairs(message->calls));
}

std::optional<std::pair<int, nb::bytes>> PollOf(Membership& self, double now, std::uint16_t lane) {
  std::array<std::byte, kMembershipBytesMax> out;
  const auto outgoing = self.Poll(At(now), lane, out);
  if (!outgoing) return std::nullopt;
  return std::pair(outgoing->to.value(), nb::bytes(out.data(), outgoing->bytes));
}

}  // namespace

void BindMembership(nb::module_& m) {
  m.def("encode_membership", &EncodeMembershipOf);
  m.def("parse_membership", &ParseMembershipOf);
  m.attr("MEMBERSHIP_BYTES_MAX") = kMembershipBytesMax;
  nb::class_<Membership>(m, "Membership")
      .def(
          "__init__",
          [](Membership* self, std::uint16_t rank, std::uint16_t world_size, double timeout_s,
             std::uint16_t lanes) {
            new (self) Membership(Rank(rank), world_size, FromSeconds(timeout_s), lanes);
          },
          nb::arg("rank"), nb::arg("world_size"), nb::arg("peer_timeout_s"), nb::arg("lanes") = 1)
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
             return std::chrono::duration<double>(self.timeout().time_since_epoch()).count();
           })
      .def("poll", &PollOf);
}

}  // namespace optireduce
