// The flow to one peer, with numbers for info.

#include "ffi/protocol/path/flow.h"

#include <algorithm>
#include <array>

#include "ffi/base/check.h"
#include "ffi/protocol/wire/wire.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

class TestFlow {
 public:
  TestFlow(std::size_t window_bytes_max, std::size_t datagram_bytes_max, bool same_host)
      : flow_({.window_bytes_max = window_bytes_max,
               .datagram_bytes_max = datagram_bytes_max,
               .same_host = same_host}) {}

  void SetWeight(double weight) { flow_.SetWeight(weight); }
  bool CanSend(std::size_t bytes) const { return flow_.CanSend(bytes); }
  bool MayStart(double now) { return flow_.MayStart(At(now)); }
  // The batch has datagrams of this length alone, unless `batch_bytes` is given.
  std::uint64_t Track(double now, std::uint32_t info, std::size_t bytes, std::size_t batch_bytes) {
    return flow_.Track(At(now),
                       {.kind = DatagramKind::kContribution, .segment = SegmentIndex(info)}, bytes,
                       std::max(bytes, batch_bytes));
  }
  // Delivered (true), lost (false), or refused (nothing).
  using Deliveries = std::vector<std::pair<std::uint32_t, std::optional<bool>>>;
  Deliveries HandleAcknowledgement(double now, const nb::bytes& payload) {
    const auto news = ParseAcknowledgement(BytesOf(payload));
    OR_CHECK(news.has_value());
    return ToDeliveries(flow_.HandleAcknowledgement(At(now), *news));
  }
  Deliveries HandleTimeout(double now) { return ToDeliveries(flow_.HandleTimeout(At(now))); }
  void RequestRoom() { flow_.RequestRoom(); }
  bool PopProbe() { return flow_.PopProbe(); }
  std::uint64_t TrackProbe(double now) {
    return flow_.Track(At(now), {.kind = DatagramKind::kProbe}, kOverheadBytes, kOverheadBytes);
  }
  std::optional<std::pair<std::size_t, std::size_t>> BlackHoleOf(double patience_s) const {
    const auto hole = flow_.lengths().Find(FromSeconds(patience_s));
    if (!hole) return std::nullopt;
    return std::pair(hole->lost_bytes, hole->delivered_bytes);
  }
  double Timeout() const { return ToSeconds(flow_.timeout()); }
  std::size_t WindowBytes() const { return flow_.window_bytes(); }
  void Record(double now, std::uint64_t number, bool at_once, bool refused) {
    flow_.received().Record(At(now), number, at_once ? Acknowledge::kAtOnce : Acknowledge::kSoon,
                            refused);
  }
  bool AcknowledgementDue(double now) const { return flow_.received().AcknowledgementDue(At(now)); }
  nb::bytes MakeAcknowledgement(double now) {
    std::array<std::byte, kAcknowledgementBytesMax> payload;
    const std::size_t bytes =
        EncodeAcknowledgement(flow_.received().MakeAcknowledgement(At(now)), payload);
    return ToBytes(std::span(payload).first(bytes));
  }

 private:
  static Deliveries ToDeliveries(const std::vector<Delivery>& deliveries) {
    Deliveries pairs;
    for (const Delivery& delivery : deliveries) {
      std::optional<bool> delivered;
      if (delivery.outcome != Delivery::Outcome::kRefused) {
        delivered = delivery.outcome == Delivery::Outcome::kDelivered;
      }
      pairs.emplace_back(delivery.info.segment.value(), delivered);
    }
    return pairs;
  }
  Flow flow_;
};

void Bind(nb::module_& m) {
  nb::class_<TestFlow>(m, "Flow")
      .def(nb::init<std::size_t, std::size_t, bool>(), "window_bytes_max"_a, "datagram_bytes_max"_a,
           "same_host"_a = false)
      .def("can_send", &TestFlow::CanSend)
      .def("set_weight", &TestFlow::SetWeight)
      .def("may_start", &TestFlow::MayStart)
      .def("track", &TestFlow::Track, "now"_a, "info"_a, "bytes"_a, "batch_bytes"_a = 0)
      .def("handle_acknowledgement", &TestFlow::HandleAcknowledgement)
      .def("handle_timeout", &TestFlow::HandleTimeout)
      .def("request_room", &TestFlow::RequestRoom)
      .def("pop_probe", &TestFlow::PopProbe)
      .def("track_probe", &TestFlow::TrackProbe)
      .def("black_hole", &TestFlow::BlackHoleOf)
      .def("timeout", &TestFlow::Timeout)
      .def("window_bytes", &TestFlow::WindowBytes)
      .def("record", &TestFlow::Record, "now"_a, "number"_a, "at_once"_a = false,
           "refused"_a = false)
      .def("acknowledgement_due", &TestFlow::AcknowledgementDue)
      .def("make_acknowledgement", &TestFlow::MakeAcknowledgement);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
