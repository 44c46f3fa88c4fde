// The calls of one collective at one rank, without a session: segments of one float32 each.

#include "ffi/protocol/call/exchange.h"

#include <cstring>
#include <map>

#include "ffi/protocol/wire/sender_info.h"
#include "ffi/schedule/tar.h"
#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace optireduce::testing {
namespace OR_FILE {

constexpr const char* kReceipts[] = {"new", "duplicate", "late", "stale", "mismatched"};
constexpr const char* kAnswers[] = {"not needed", "again", "abandoned"};

class TestCalls {
 public:
  // With a `late_budget`, deadlines are learned.
  TestCalls(const Collective& collective, std::uint16_t self, double late_budget, bool goes_on)
      : collective_(CollectiveId(1), collective.ToSpec(), MemberIndex(self), sizeof(float)),
        order_(TarSendOrder(collective_.layout.members(), MemberIndex(self))),
        late_budget_(late_budget),
        goes_on_(goes_on) {
    if (OutlivesMembers(collective_.spec)) collective_.presence = &presence_;
  }

  void Open(std::uint32_t sequence, double now, bool drain) {
    EndpointOptions options;
    options.max_lag = 1;
    options.late_budget = late_budget_;
    options.world_size = goes_on_ ? kCatchUpWorldSizeMin : 2;
    CallPolicy::Prepare(collective_, options, pool_);
    calls_[sequence] =
        std::make_unique<Exchange>(collective_, Sequence(sequence), At(now), pool_,
                                   ExchangeOptions{.send_order = order_,
                                                   .lag_timeout = FromSeconds(1),
                                                   .drain = drain,
                                                   .wire_format = collective_.spec.wire_format});
  }
  void Submit(std::uint32_t sequence, double now, std::vector<float> values) {
    std::vector<float>& bucket = buckets_[sequence] = std::move(values);
    const std::uint64_t elements = bucket.size();
    Call(sequence).Submit(
        At(now),
        {.spec = collective_.spec,
         .sequence = Sequence(sequence),
         .leaves = {{.data = reinterpret_cast<std::byte*>(bucket.data()), .elements = elements}}},
        /*in_order=*/true);
  }
  // A contribution, or a result with `contributors`. Its sender has called since `since_call`.
  std::string Handle(std::uint32_t sequence, double now, std::uint16_t from, std::uint32_t segment,
                     float value, std::uint16_t contributors, double since_call,
                     bool retransmission) {
    Header header;
    header.kind = contributors > 0 ? DatagramKind::kResult : DatagramKind::kContribution;
    header.call = {.collective = collective_.id, .sequence = Sequence(sequence)};
    header.segment = SegmentIndex(segment);
    header.contributors = contributors;
    header.flags = retransmission ? kFlagRetransmission : 0;
    header.sender_info = EncodeSenderInfo({.since_call = At(since_call) - Instant{}});
    const auto payload = std::as_bytes(std::span(&value, 1));
    const auto call = calls_.find(sequence);
    const Receipt receipt =
        call == calls_.end()
            ? CallPolicy::HandleOver(At(now), collective_, MemberIndex(from), header, payload)
            : call->second->Handle(At(now), MemberIndex(from), header, payload).receipt;
    return kReceipts[static_cast<std::size_t>(receipt)];
  }
  // Sends the next segment to a peer: its kind, number and value.
  std::optional<std::tuple<std::string, std::uint32_t, float>> Send(std::uint32_t sequence,
                                                                    std::uint16_t to) {
    CallSender& sender = Call(sequence).sender();
    const auto item = sender.Next(MemberIndex(to));
    if (!item) return std::nullopt;
    float value = 0;
    std::vector<std::byte> out(sizeof(value));
    const auto payload = sender.Payload(MemberIndex(to), {.first = *item}, out);
    std::memcpy(&value, payload.data(), sizeof(value));
    sender.Sent(MemberIndex(to), {.first = *item});
    return std::tuple(item->kind == DatagramKind::kResult ? "result" : "contribution",
                      item->segment.value(), value);
  }
  std::string Lose(std::uint32_t sequence, std::uint16_t to, const std::string& kind,
                   std::uint32_t segment, bool refused) {
    return kAnswers[static_cast<std::size_t>(
        Call(sequence).sender().HandleLoss(MemberIndex(to), ItemOf(kind, segment), refused))];
  }
  bool Deliver(std::uint32_t sequence, std::uint16_t to, const std::string& kind,
               std::uint32_t segment) {
    return Call(sequence).sender().HandleDelivery(MemberIndex(to), ItemOf(kind, segment));
  }
  int Expire(std::uint32_t sequence, double now) {
    return Call(sequence).Expire(At(now)).stages_expired;
  }
  bool CloseNext(std::uint32_t sequence, double now, std::uint16_t to) {
    return Call(sequence).CloseNext(At(now), MemberIndex(to));
  }
  // The result.
  std::vector<float> Finish(std::uint32_t sequence, double now) {
    stats_ = Call(sequence).Finish(At(now), {}).stats;
    return buckets_[sequence];
  }
  void Erase(std::uint32_t sequence) {
    Call(sequence).Remember();
    calls_.erase(sequence);
  }
  bool Complete(std::uint32_t sequence) { return Call(sequence).complete(); }
  bool Removable(std::uint32_t sequence) { return Call(sequence).removable(); }
  bool CanMerge(std::uint32_t sequence) { return Call(sequence).CanMerge(); }
  bool Straggles(std::uint16_t member) const {
    return collective_.timing->straggles(MemberIndex(member));
  }
  double DeadlineNeeded() const { return ToSeconds(collective_.timing->deadline_needed()); }
  std::uint16_t Slowest() const { return stats_.slowest.value(); }
  double MissingContributions() const { return stats_.missing_contributions; }
  double Deferred() const { return stats_.deferred; }
  std::uint64_t Retransmitted() const { return stats_.retransmitted; }
  double InFlight() const { return stats_.in_flight; }

 private:
  Exchange& Call(std::uint32_t sequence) { return *calls_.at(sequence); }
  static Outbox::Item ItemOf(const std::string& kind, std::uint32_t segment) {
    return {
        .kind = kind == "result" ? DatagramKind::kResult : DatagramKind::kContribution,
        .segment = SegmentIndex(segment),
        .retransmission = true,
    };
  }

  BufferPool pool_;
  Presence presence_;
  optireduce::Collective collective_;
  std::vector<MemberIndex> order_;
  double late_budget_;
  bool goes_on_;
  std::map<std::uint32_t, std::vector<float>> buckets_;
  std::map<std::uint32_t, std::unique_ptr<Exchange>> calls_;
  CallStats stats_;  // the statistics of the last call that has finished
};

// Encodes values of one segment in each of some calls, and decodes them. `format`: of the calls.
std::vector<float> RoundTrip(const Collective& collective, std::uint16_t self,
                             std::vector<float> values, bool drain, const std::string& format) {
  const optireduce::Collective known(CollectiveId(1), collective.ToSpec(), MemberIndex(self),
                                     sizeof(float));
  BufferPool pool;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Sequence sequence(static_cast<std::uint32_t>(i));
    SegmentCodec codec(known, sequence, WireFormatOf(format), drain, pool);
    Header header;
    header.flags = drain ? kFlagDrain : 0;
    std::vector<std::byte> encoded(codec.PayloadBytes(SegmentIndex(0)));
    const auto* const part = reinterpret_cast<const std::byte*>(&values[i]);
    codec.Encode(DatagramKind::kContribution, SegmentIndex(0), std::span(&part, 1), encoded);
    std::vector<std::byte> scratch;
    const auto decoded = SegmentCodec::Decode(known, header, encoded, scratch);
    std::memcpy(&values[i], decoded->data(), sizeof(float));
  }
  return values;
}

void Bind(nb::module_& m) {
  nb::class_<TestCalls>(m, "Calls")
      .def(nb::init<const Collective&, std::uint16_t, double, bool>(), "collective"_a, "self"_a,
           "late_budget"_a = 0.0, "goes_on"_a = false)
      .def("open", &TestCalls::Open, "sequence"_a, "now"_a, "drain"_a = false)
      .def("submit", &TestCalls::Submit)
      .def("handle", &TestCalls::Handle, "sequence"_a, "now"_a, "source"_a, "segment"_a, "value"_a,
           "contributors"_a = 0, "since_call"_a = 0.0, "retransmission"_a = false)
      .def("send", &TestCalls::Send)
      .def("lose", &TestCalls::Lose, "sequence"_a, "to"_a, "kind"_a, "segment"_a,
           "refused"_a = false)
      .def("deliver", &TestCalls::Deliver)
      .def("expire", &TestCalls::Expire)
      .def("close_next", &TestCalls::CloseNext)
      .def("finish", &TestCalls::Finish)
      .def("erase", &TestCalls::Erase)
      .def("complete", &TestCalls::Complete)
      .def("removable", &TestCalls::Removable)
      .def("can_merge", &TestCalls::CanMerge)
      .def("straggles", &TestCalls::Straggles)
      .def_prop_ro("deadline_needed", &TestCalls::DeadlineNeeded)
      .def_prop_ro("slowest", &TestCalls::Slowest)
      .def_prop_ro("missing_contributions", &TestCalls::MissingContributions)
      .def_prop_ro("deferred", &TestCalls::Deferred)
      .def_prop_ro("retransmitted", &TestCalls::Retransmitted)
      .def_prop_ro("in_flight", &TestCalls::InFlight);
  m.def("round_trip", &RoundTrip);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
