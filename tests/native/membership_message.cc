// The messages of the agreement on members.

#include "ffi/protocol/wire/membership_message.h"

#include <nanobind/operators.h>

#include <array>

#include "tests/native/binding.h"
#include "tests/native/membership_values.h"

namespace optireduce::testing {
namespace OR_FILE {

// A message in plain numbers.
struct PlainMessage {
  std::uint8_t kind = 0;
  bool asks = false;
  std::uint32_t view = 0;
  Pair ballot{};
  Pair accepted{};
  std::uint16_t part = 0;
  std::uint16_t parts = 1;
  std::vector<int> ranks{};
  std::vector<Pair> calls{};
  friend bool operator==(const PlainMessage&, const PlainMessage&) = default;
};

nb::bytes EncodeMembershipOf(const PlainMessage& plain) {
  MembershipMessage message{.kind = static_cast<MembershipKind>(plain.kind),
                            .asks = plain.asks,
                            .view = plain.view,
                            .ballot = ToBallot(plain.ballot),
                            .accepted = ToBallot(plain.accepted),
                            .part = plain.part,
                            .parts = plain.parts};
  for (const int rank : plain.ranks) message.ranks.emplace_back(static_cast<std::uint16_t>(rank));
  message.calls = CallsOf(plain.calls);
  std::array<std::byte, kMembershipBytesMax> bytes;
  return nb::bytes(bytes.data(), EncodeMembership(message, bytes));
}

std::optional<PlainMessage> ParseMembershipOf(const nb::bytes& bytes, std::uint16_t world_size) {
  const auto message = ParseMembership(BytesOf(bytes), world_size);
  if (!message) return std::nullopt;
  return PlainMessage{.kind = static_cast<std::uint8_t>(message->kind),
                      .asks = message->asks,
                      .view = message->view,
                      .ballot = ToPair(message->ballot),
                      .accepted = ToPair(message->accepted),
                      .part = message->part,
                      .parts = message->parts,
                      .ranks = ToInts(message->ranks),
                      .calls = ToPairs(message->calls)};
}

void Bind(nb::module_& m) {
  nb::class_<PlainMessage>(m, "MembershipMessage")
      .def(
          "__init__",
          [](PlainMessage* self, std::uint8_t kind, bool asks, std::uint32_t view, Pair ballot,
             Pair accepted, std::uint16_t part, std::uint16_t parts, const std::vector<int>& ranks,
             const std::vector<Pair>& calls) {
            new (self) PlainMessage{kind, asks, view, ballot, accepted, part, parts, ranks, calls};
          },
          nb::kw_only(), "kind"_a, "asks"_a = false, "view"_a = 0, "ballot"_a = Pair(),
          "accepted"_a = Pair(), "part"_a = 0, "parts"_a = 1, "ranks"_a = std::vector<int>(),
          "calls"_a = std::vector<Pair>())
      .def_rw("kind", &PlainMessage::kind)
      .def_rw("asks", &PlainMessage::asks)
      .def_rw("view", &PlainMessage::view)
      .def_rw("ballot", &PlainMessage::ballot)
      .def_rw("accepted", &PlainMessage::accepted)
      .def_rw("part", &PlainMessage::part)
      .def_rw("parts", &PlainMessage::parts)
      .def_rw("ranks", &PlainMessage::ranks)
      .def_rw("calls", &PlainMessage::calls)
      .def(nb::self == nb::self);
  m.attr("MEMBERSHIP_BYTES_MAX") = kMembershipBytesMax;
  m.def("encode_membership", &EncodeMembershipOf, "message"_a);
  m.def("parse_membership", &ParseMembershipOf, "bytes"_a, "world_size"_a);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
