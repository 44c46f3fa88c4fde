// An endpoint driven by the test, for float32 buckets; times in seconds.

#include "ffi/protocol/endpoint.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstring>

#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace optireduce::testing {
namespace OR_FILE {

using FloatArray = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class TestEndpoint {
 public:
  TestEndpoint(int rank, int world_size, const nb::bytes& secret, std::size_t datagram_bytes_max,
               double peer_timeout_s, double mismatch_timeout_s, const std::string& protection,
               std::uint32_t session, std::uint16_t lane, double call_timeout_s,
               std::uint32_t max_lag, std::size_t early_bytes_max, std::uint16_t ranks_per_slice,
               std::size_t shard_bytes_min, std::size_t receive_buffer_bytes,
               const std::vector<std::uint16_t>& absent, double late_budget)
      : buffer_(std::size_t{1} << 16) {
    EndpointOptions options;
    options.rank = Rank(static_cast<std::uint16_t>(rank));
    options.world_size = static_cast<std::uint16_t>(world_size);
    options.session = session;
    options.lane = lane;
    options.early_bytes_max = early_bytes_max;
    options.max_lag = max_lag;
    options.ranks_per_slice = ranks_per_slice;
    options.shard_bytes_min = shard_bytes_min;
    for (const std::uint16_t each : absent) options.absent.emplace_back(each);
    options.receive_buffer_bytes = receive_buffer_bytes;
    options.late_budget = late_budget;
    if (protection == "none") options.protection = Protection::kNone;
    if (protection == "encrypt") options.protection = Protection::kEncrypt;
    if (secret.size() != options.secret.size()) throw std::invalid_argument("secret: 32 bytes");
    std::memcpy(options.secret.data(), secret.data(), secret.size());
    options.datagram_bytes_max = datagram_bytes_max;
    options.peer_timeout = FromSeconds(peer_timeout_s);
    options.mismatch_timeout = FromSeconds(mismatch_timeout_s);
    options.call_timeout = FromSeconds(call_timeout_s);
    Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::Create(options);
    if (!endpoint.ok()) throw std::invalid_argument(endpoint.status().message());
    endpoint_ = std::move(endpoint.value());
  }

  // Returns the error, or an empty text. The array is reduced in place, and has as many elements as
  // the call.
  std::string Submit(double now, const Collective& collective, FloatArray array,
                     std::uint32_t sequence, std::uint64_t token, bool drain, bool averages,
                     const std::vector<std::uint16_t>& clusters, std::uint16_t spare) {
    Submission submission;
    submission.spec = collective.ToSpec();
    submission.sequence = Sequence(sequence);
    submission.token = token;
    submission.drain = drain;
    submission.averages = averages;
    submission.quorum = {.clusters = clusters, .spare = spare};
    submission.leaves = {
        {.data = reinterpret_cast<std::byte*>(array.data()), .elements = array.size()}};
    if (array.size() != collective.elements) throw nb::value_error("another number of elements");
    return endpoint_->Submit(At(now), std::move(submission)).message();
  }
  void HandleDatagram(double now, const nb::bytes& datagram) {
    endpoint_->HandleDatagram(At(now), BytesOf(datagram));
  }
  void HandleTimeout(double now) { endpoint_->HandleTimeout(At(now)); }
  // (to, datagrams), or None.
  nb::object PollTransmit(double now, std::size_t batch_max) {
    const auto transmit = endpoint_->PollTransmit(At(now), buffer_, batch_max);
    if (!transmit) return nb::none();
    std::vector<nb::bytes> datagrams;
    std::vector<std::byte> sent;
    Join(transmit->pieces, sent);
    for (std::size_t at = 0; at < sent.size(); at += transmit->datagram_bytes) {
      datagrams.push_back(ToBytes(
          std::span(sent).subspan(at, std::min(transmit->datagram_bytes, sent.size() - at))));
    }
    return nb::make_tuple(transmit->to.value(), datagrams);
  }
  double PollTimeout() const { return ToSeconds(endpoint_->PollTimeout()); }
  std::optional<CallDone> PollEvent() { return endpoint_->PollEvent(); }
  // (rank, its call, this rank's, seconds waited, seconds after which it fails), or None.
  nb::object PollLoneCall() {
    const auto lone = endpoint_->PollLoneCall();
    if (!lone) return nb::none();
    return nb::make_tuple(lone->rank.value(), lone->call, lone->elsewhere, ToSeconds(lone->waited),
                          ToSeconds(lone->limit));
  }
  void Leave(double now, const std::string& why) {
    endpoint_->Leave(At(now), Status(StatusCode::kCancelled, why));
  }
  void Cancel(double now, const std::string& why) {
    endpoint_->Cancel(At(now), Status(StatusCode::kCancelled, why));
  }
  void GiveUp(double now, const Collective& collective, std::uint32_t sequence,
              const std::string& why) {
    Submission call;
    call.spec = collective.ToSpec();
    call.sequence = Sequence(sequence);
    endpoint_->GiveUp(At(now), std::move(call), Status(StatusCode::kCancelled, why));
  }
  void ContinueFrom(const TestEndpoint& earlier) {
    endpoint_->ContinueFrom(earlier.endpoint_->FindTimings());
  }
  void ProbePaths(const std::vector<std::size_t>& lengths) { endpoint_->ProbePaths(lengths); }
  // Key: the rank. Value: (heard, answered, passed_bytes).
  nb::dict UnprovenPaths() const {
    nb::dict paths;
    for (const UnprovenPath& path : endpoint_->UnprovenPaths()) {
      paths[nb::int_(path.peer.value())] =
          nb::make_tuple(path.heard, path.answered, path.passed_bytes);
    }
    return paths;
  }
  bool Finished() const { return endpoint_->finished(); }
  std::vector<std::uint16_t> Live() const { return ValuesOf(endpoint_->live()); }
  std::vector<std::uint16_t> Silent() const { return ValuesOf(endpoint_->silent()); }
  std::vector<std::uint16_t> Unreached() const { return ValuesOf(endpoint_->unreached()); }
  // Key: the rank. Value: (state, seconds of last_heard or nothing, calls_behind).
  nb::dict Peers() const {
    nb::dict peers;
    for (const PeerReport& peer : endpoint_->PeerReports()) {
      std::optional<double> heard;
      if (peer.last_heard) heard = ToSeconds(*peer.last_heard);
      peers[nb::int_(peer.rank.value())] =
          nb::make_tuple(static_cast<int>(peer.state), heard, peer.calls_behind);
    }
    return peers;
  }
  // The counters of one peer. Key: the name.
  nb::dict Traffic(std::uint16_t rank) const {
    nb::dict named;
    for (const PeerReport& peer : endpoint_->PeerReports()) {
      if (peer.rank != Rank(rank)) continue;
      named["bytes_sent"] = peer.traffic.bytes_sent;
      named["bytes_received"] = peer.traffic.bytes_received;
      named["segments_sent"] = peer.traffic.segments_sent;
      named["segments_retransmitted"] = peer.traffic.segments_retransmitted;
      named["segments_received"] = peer.traffic.segments_received;
      named["segments_late"] = peer.traffic.segments_late;
    }
    return named;
  }
  std::size_t MemoryBytes() const { return endpoint_->memory_bytes(); }
  nb::dict CountersOf() const {
    nb::dict counters;
#define OPTIREDUCE_ADD(name, meaning) counters[#name] = endpoint_->counters().name;
    OPTIREDUCE_COUNTERS(OPTIREDUCE_ADD)
#undef OPTIREDUCE_ADD
    return counters;
  }

 private:
  static std::vector<std::uint16_t> ValuesOf(const std::vector<Rank>& ranks) {
    std::vector<std::uint16_t> values;
    for (const Rank rank : ranks) values.push_back(rank.value());
    return values;
  }

  std::unique_ptr<Endpoint> endpoint_;
  std::vector<std::byte> buffer_;
};

void BindCallDone(nb::module_& m) {
  nb::class_<CallDone>(m, "CallDone")
      .def_ro("token", &CallDone::token)
      // Empty for a call without an error.
      .def_prop_ro("error", [](const CallDone& self) { return self.status.message(); })
      .def_prop_ro("missing_contributions",
                   [](const CallDone& self) { return self.stats.missing_contributions; })
      .def_prop_ro("missing_results",
                   [](const CallDone& self) { return self.stats.missing_results; })
      .def_prop_ro("deferred", [](const CallDone& self) { return self.stats.deferred; })
      .def_prop_ro("in_flight", [](const CallDone& self) { return self.stats.in_flight; })
      .def_prop_ro("live", [](const CallDone& self) { return self.stats.live; })
      .def_prop_ro("elapsed", [](const CallDone& self) { return ToSeconds(self.stats.elapsed); })
      .def_prop_ro("deadline", [](const CallDone& self) { return ToSeconds(self.stats.deadline); })
      .def_prop_ro("passed", [](const CallDone& self) { return self.stats.passed; })
      .def_prop_ro("number", [](const CallDone& self) { return self.stats.number.value(); })
      .def_prop_ro("skipped", [](const CallDone& self) { return self.stats.skipped; })
      .def_prop_ro("slowest", [](const CallDone& self) { return self.stats.slowest.value(); });
}

void BindEndpoint(nb::module_& m) {
  nb::class_<TestEndpoint>(m, "Endpoint")
      .def(nb::init<int, int, nb::bytes, std::size_t, double, double, const std::string&,
                    std::uint32_t, std::uint16_t, double, std::uint32_t, std::size_t, std::uint16_t,
                    std::size_t, std::size_t, const std::vector<std::uint16_t>&, double>(),
           "rank"_a, "world_size"_a, "secret"_a, "datagram_bytes_max"_a = 1472,
           "peer_timeout_s"_a = 30.0, "mismatch_timeout_s"_a = 10.0,
           "protection"_a = "authenticate", "session"_a = 77, "lane"_a = 0,
           "call_timeout_s"_a = 0.0, "max_lag"_a = 2, "early_bytes_max"_a = std::size_t{4} << 30,
           "ranks_per_slice"_a = 1,
           // Every rank owns a shard, unless a test is about small buckets.
           "shard_bytes_min"_a = 1,
           "receive_buffer_bytes"_a = EndpointOptions{}.receive_buffer_bytes,
           "absent"_a = std::vector<std::uint16_t>(), "late_budget"_a = 0.0)
      .def("submit", &TestEndpoint::Submit, "now"_a, "collective"_a, "array"_a, "sequence"_a = 0,
           "token"_a = 0, "drain"_a = false, "averages"_a = false,
           "clusters"_a = std::vector<std::uint16_t>(), "spare"_a = 0)
      .def("handle_datagram", &TestEndpoint::HandleDatagram)
      .def("handle_timeout", &TestEndpoint::HandleTimeout)
      .def("poll_transmit", &TestEndpoint::PollTransmit)
      .def("poll_timeout", &TestEndpoint::PollTimeout)
      .def("poll_event", &TestEndpoint::PollEvent)
      .def("poll_lone_call", &TestEndpoint::PollLoneCall)
      .def("leave", &TestEndpoint::Leave)
      .def("cancel", &TestEndpoint::Cancel)
      .def("give_up", &TestEndpoint::GiveUp)
      .def("continue_from", &TestEndpoint::ContinueFrom)
      .def("probe_paths", &TestEndpoint::ProbePaths)
      .def("unproven_paths", &TestEndpoint::UnprovenPaths)
      .def("finished", &TestEndpoint::Finished)
      .def("memory_bytes", &TestEndpoint::MemoryBytes)
      .def("counters", &TestEndpoint::CountersOf)
      .def("live", &TestEndpoint::Live)
      .def("peers", &TestEndpoint::Peers)
      .def("traffic", &TestEndpoint::Traffic, "rank"_a)
      .def("silent", &TestEndpoint::Silent)
      .def("unreached", &TestEndpoint::Unreached);
}

void Bind(nb::module_& m) {
  BindCallDone(m);
  BindEndpoint(m);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
