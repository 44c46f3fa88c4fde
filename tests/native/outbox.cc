// The unsent segments of one call to one peer.

#include "ffi/protocol/call/outbox.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// ("sum" or "contribution", segment, whether it was sent before)
using Item = std::tuple<std::string, std::uint32_t, bool>;

Outbox::Item ToItem(const Item& item) {
  const auto& [kind, segment, again] = item;
  return {.kind = kind == "sum" ? DatagramKind::kResult : DatagramKind::kContribution,
          .segment = SegmentIndex(segment),
          .retransmission = again};
}

std::optional<Item> Next(Outbox& self, const std::vector<std::uint32_t>& sums, bool contribute) {
  std::vector<SegmentIndex> ready;
  for (const std::uint32_t sum : sums) ready.emplace_back(sum);
  const std::optional<Outbox::Item> next = self.Next(ready, contribute);
  if (!next) return std::nullopt;
  return Item(next->kind == DatagramKind::kResult ? "sum" : "contribution", next->segment.value(),
              next->retransmission);
}

void Bind(nb::module_& m) {
  nb::class_<Outbox>(m, "Outbox")
      .def(
          "__init__",
          [](Outbox* self, std::uint32_t peer_shard, std::uint32_t peer_segments,
             std::uint32_t own_shard, std::uint32_t own_segments) {
            new (self) Outbox(SegmentIndex(peer_shard), peer_segments, SegmentIndex(own_shard),
                              own_segments);
          },
          "peer_shard"_a, "peer_segments"_a, "own_shard"_a, "own_segments"_a)
      .def("next", &Next, "sums"_a, "contribute"_a = true)
      .def("pop", [](Outbox& self, const Item& item) { self.Pop(ToItem(item)); })
      .def("retransmit", [](Outbox& self, const Item& item) { self.Retransmit(ToItem(item)); })
      .def("deliver", [](Outbox& self, std::uint32_t sum) { self.Deliver(SegmentIndex(sum)); })
      .def("deliver_all", &Outbox::DeliverAll)
      .def("offer_contributions", &Outbox::OfferContributions)
      .def("abandon_contributions", &Outbox::AbandonContributions)
      .def("remaining",
           [](const Outbox& self, const std::string& kind) {
             return self.Remaining(kind == "sum" ? DatagramKind::kResult
                                                 : DatagramKind::kContribution);
           })
      .def_prop_ro("delivered", &Outbox::Delivered)
      .def_prop_ro("undelivered", &Outbox::undelivered)
      .def_prop_ro("contributing", &Outbox::contributing);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
