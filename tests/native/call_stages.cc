// The parts of one call: its rules for late data, its stages and its sender, without the exchange
// that joins them. The test plays the program, the peers and the clock.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "ffi/protocol/call/all_gather_stage.h"
#include "ffi/protocol/call/call_policy.h"
#include "ffi/protocol/call/call_sender.h"
#include "ffi/protocol/call/reduce_scatter_stage.h"
#include "ffi/protocol/call/segment_codec.h"
#include "ffi/schedule/tar.h"
#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace optireduce::testing {
namespace OR_FILE {

constexpr const char* kReceipts[] = {"new", "duplicate", "late", "stale", "mismatched"};
constexpr const char* kAnswers[] = {"not needed", "again", "abandoned"};

// ("sum" or "contribution", segment, whether it was sent before)
using Item = std::tuple<std::string, std::uint32_t, bool>;

// A call of member 0. A segment is one float32.
class CallStages {
 public:
  CallStages(const Collective& collective, std::uint32_t sequence, double now, bool drain)
      : collective_(CollectiveId(1), collective.ToSpec(), MemberIndex(0), sizeof(float)),
        order_(TarSendOrder(collective_.layout.members(), MemberIndex(0))),
        policy_(Rules(sequence, now, drain)),
        codec_(collective_, Sequence(sequence), collective_.spec.wire_format, drain, pool_),
        first_(collective_, policy_, codec_, pool_),
        sender_(collective_, policy_, codec_, first_, bucket_, pool_, order_),
        second_(collective_, policy_, sender_, bucket_, pool_) {}
  CallStages(const CallStages&) = delete;

  // The program makes the call.
  void Submit(double now, std::vector<float> values) {
    values_ = std::move(values);
    const Leaf leaf{.data = reinterpret_cast<std::byte*>(values_.data()),
                    .elements = values_.size()};
    bucket_ = BucketView({&leaf, 1}, sizeof(float));
    sender_.Submit();
    policy_.Submit(At(now), /*in_order=*/true);
    second_.Submit(At(now), {});
    first_.Submit(At(now), bucket_);
  }
  std::vector<float> bucket() const { return values_; }
  std::size_t used_bytes() const { return pool_.used_bytes(); }

  // ---- ReduceScatterStage.

  std::string Contribute(double now, std::uint16_t from, std::uint32_t segment, float value,
                         std::uint8_t flags) {
    return kReceipts[static_cast<int>(
        first_.Handle(At(now), MemberIndex(from),
                      HeaderOf(DatagramKind::kContribution, segment, flags), BytesOf(value)))];
  }
  std::vector<std::tuple<std::uint32_t, float, int>> Sums() const {
    std::vector<std::tuple<std::uint32_t, float, int>> sums;
    for (const SegmentIndex segment : first_.sums()) {
      sums.emplace_back(segment.value(), ValueOf(first_.Sum(segment)),
                        first_.contributors(segment));
    }
    return sums;
  }
  ReduceScatterStage& first() { return first_; }
  bool HoldsDeferred(std::uint32_t segment) const {
    return first_.HoldsDeferred(SegmentIndex(segment));
  }
  std::size_t Missing(std::uint16_t from) const { return first_.Missing(MemberIndex(from)); }
  void Exclude(std::uint16_t gone) { first_.Exclude(MemberIndex(gone)); }
  void MakeOptional(std::uint16_t absent) { first_.MakeOptional(MemberIndex(absent)); }
  std::optional<float> LateContribution(std::uint32_t segment) const {
    const SegmentStore& late = collective_.deferred->late_contributions();
    if (!late.Contains(SegmentIndex(segment))) return std::nullopt;
    return ValueOf(late.Get(SegmentIndex(segment)));
  }

  // ---- AllGatherStage.

  std::string Result(double now, std::uint16_t from, std::uint32_t segment, float value,
                     std::uint16_t contributors) {
    Header header = HeaderOf(DatagramKind::kResult, segment, 0);
    header.contributors = contributors;
    if (!second_.Fits(MemberIndex(from), header, sizeof(float))) return "mismatched";
    return kReceipts[static_cast<int>(
        second_.Handle(At(now), MemberIndex(from), header, BytesOf(value)))];
  }
  AllGatherStage& second() { return second_; }
  std::uint32_t NotReceived(std::uint16_t owner) const {
    return second_.NotReceived(MemberIndex(owner));
  }
  void MakeResultsOptional(std::uint16_t absent) { second_.MakeOptional(MemberIndex(absent)); }
  void ExcludeResults(std::uint16_t gone) { second_.Exclude(MemberIndex(gone)); }
  std::vector<float> LateResults() {
    std::vector<float> late(collective_.spec.elements);
    const Leaf leaf{.data = reinterpret_cast<std::byte*>(late.data()), .elements = late.size()};
    collective_.deferred->MoveLateResults(BucketView({&leaf, 1}, sizeof(float)));
    return late;
  }

  // ---- CallSender.

  void SetIncast(std::uint16_t incast) { sender_.SetIncast(incast); }
  void SetStalled(std::uint16_t to, bool stalled) { sender_.SetStalled(MemberIndex(to), stalled); }
  std::optional<Item> Next(std::uint16_t to) {
    const std::optional<Outbox::Item> next = sender_.Next(MemberIndex(to));
    return next ? std::optional(ToTuple(*next)) : std::nullopt;
  }
  // Sends it; returns the value.
  float Send(std::uint16_t to, const Item& item) {
    float out = 0;
    const std::span<const std::byte> payload = sender_.Payload(
        MemberIndex(to), {.first = ToItem(item)}, std::as_writable_bytes(std::span(&out, 1)));
    const float value = ValueOf(payload);
    sender_.Sent(MemberIndex(to), {.first = ToItem(item)});
    return value;
  }
  bool Deliver(std::uint16_t to, const Item& item) {
    return sender_.HandleDelivery(MemberIndex(to), ToItem(item));
  }
  std::string Lose(std::uint16_t to, const Item& item, bool refused) {
    return kAnswers[static_cast<int>(sender_.HandleLoss(MemberIndex(to), ToItem(item), refused))];
  }
  bool Served(std::uint16_t to) const { return sender_.Served(MemberIndex(to)); }
  bool OutOfTurn(std::uint16_t to) const { return sender_.OutOfTurn(MemberIndex(to)); }
  void Release(std::uint16_t peer) { sender_.DropPeer(MemberIndex(peer)); }
  double InFlight() const { return sender_.InFlight(); }
  std::uint64_t retransmitted() const { return sender_.retransmitted(); }

  // ---- CallPolicy.

  CallPolicy& policy() { return policy_; }
  // Another call of the collective that is over here; returns what becomes of a contribution to it.
  std::string Over(double now, std::uint16_t from, std::uint32_t sequence, std::uint32_t segment,
                   float value) {
    Header header = HeaderOf(DatagramKind::kContribution, segment, 0);
    header.call.sequence = Sequence(sequence);
    return kReceipts[static_cast<int>(
        CallPolicy::HandleOver(At(now), collective_, MemberIndex(from), header, BytesOf(value)))];
  }

 private:
  CallPolicy Rules(std::uint32_t sequence, double now, bool drain) {
    EndpointOptions options;
    options.max_lag = 1;
    CallPolicy::Prepare(collective_, options, pool_);
    return CallPolicy::Open(collective_, Sequence(sequence), At(now), drain);
  }
  static std::span<const std::byte> BytesOf(const float& value) {
    return std::as_bytes(std::span(&value, 1));
  }
  static float ValueOf(std::span<const std::byte> bytes) {
    float value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  static Header HeaderOf(DatagramKind kind, std::uint32_t segment, std::uint8_t flags) {
    Header header;
    header.kind = kind;
    header.flags = flags;
    header.segment = SegmentIndex(segment);
    return header;
  }
  static Item ToTuple(const Outbox::Item& item) {
    return {item.kind == DatagramKind::kResult ? "sum" : "contribution", item.segment.value(),
            item.retransmission};
  }
  static Outbox::Item ToItem(const Item& item) {
    const auto& [kind, segment, again] = item;
    return {.kind = kind == "sum" ? DatagramKind::kResult : DatagramKind::kContribution,
            .segment = SegmentIndex(segment),
            .retransmission = again};
  }

  BufferPool pool_;
  optireduce::Collective collective_;
  std::vector<MemberIndex> order_;
  std::vector<float> values_;
  BucketView bucket_;
  CallPolicy policy_;
  SegmentCodec codec_;
  ReduceScatterStage first_;
  CallSender sender_;
  AllGatherStage second_;
};

void Bind(nb::module_& m) {
  nb::class_<CallStages>(m, "CallStages")
      .def(nb::init<const Collective&, std::uint32_t, double, bool>(), "collective"_a,
           "sequence"_a = 0, "now"_a = 0.0, "drain"_a = false)
      .def("submit", &CallStages::Submit)
      .def_prop_ro("bucket", &CallStages::bucket)
      .def("contribute", &CallStages::Contribute, "now"_a, "source"_a, "segment"_a, "value"_a,
           "flags"_a = 0)
      .def_prop_ro("sums", &CallStages::Sums)
      .def("holds_deferred", &CallStages::HoldsDeferred)
      .def("missing", &CallStages::Missing)
      .def("exclude", &CallStages::Exclude)
      .def("make_optional", &CallStages::MakeOptional)
      .def("begin_closing", [](CallStages& self) { self.first().BeginClosing(); })
      .def("close_next", [](CallStages& self) { self.first().CloseNext(); })
      .def("close", [](CallStages& self) { self.first().Close(); })
      .def("drain", [](CallStages& self) { return self.first().Drain(); })
      .def_prop_ro("finished", [](CallStages& self) { return self.first().finished(); })
      .def("late_contribution", &CallStages::LateContribution)
      .def("result", &CallStages::Result, "now"_a, "source"_a, "segment"_a, "value"_a,
           "contributors"_a)
      .def("not_received", &CallStages::NotReceived)
      .def("make_results_optional", &CallStages::MakeResultsOptional)
      .def("exclude_results", &CallStages::ExcludeResults)
      .def_prop_ro("complete", [](CallStages& self) { return self.second().complete(); })
      .def_prop_ro("early_bytes", [](CallStages& self) { return self.second().EarlyBytes(); })
      .def_prop_ro("used_bytes", &CallStages::used_bytes)
      .def("end", [](CallStages& self) { self.second().End(); })
      .def("zero_missing", [](CallStages& self) { self.second().ZeroMissing(); })
      .def("late_results", &CallStages::LateResults)
      .def("set_incast", &CallStages::SetIncast)
      .def("set_stalled", &CallStages::SetStalled)
      .def("next", &CallStages::Next)
      .def("send", &CallStages::Send)
      .def("deliver", &CallStages::Deliver)
      .def("lose", &CallStages::Lose, "to"_a, "item"_a, "refused"_a = false)
      .def("served", &CallStages::Served)
      .def("held_back", &CallStages::OutOfTurn)
      .def("release", &CallStages::Release)
      .def_prop_ro("in_flight", &CallStages::InFlight)
      .def_prop_ro("retransmitted", &CallStages::retransmitted)
      .def("over", &CallStages::Over)
      .def_prop_ro("waits", [](CallStages& self) { return self.policy().Waits(); })
      .def_prop_ro("retains", [](CallStages& self) { return self.policy().retains(); })
      .def_prop_ro("loses_late", [](CallStages& self) { return self.policy().LosesLate(); })
      .def_prop_ro("continues_late", [](CallStages& self) { return self.policy().ContinuesLate(); })
      .def_prop_ro("sums_need_all", [](CallStages& self) { return self.policy().SumsNeedAll(); })
      .def_prop_ro("first_deadline",
                   [](CallStages& self) {
                     return ToSeconds(self.policy().ReduceScatterDeadline(/*closing=*/false));
                   })
      .def_prop_ro("call_deadline",
                   [](CallStages& self) { return ToSeconds(self.policy().CallDeadline()); });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
