// The protocol's classes for tests: wire format, layout, flow, and an endpoint driven by hand.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>
#include <utility>

#include "ffi/base/instant_tree.h"
#include "ffi/base/ring.h"
#include "ffi/bind/testing.h"
#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/protocol/path/flow.h"
#include "ffi/protocol/wire/wire.h"

namespace nb = nanobind;

namespace optireduce {
namespace {

std::span<const std::byte> BytesOf(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

nb::bytes ToBytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

Instant At(double seconds) {
  // Rounded: what PollTimeout returned must come back as the same instant.
  return Instant(std::chrono::round<Duration>(std::chrono::duration<double>(seconds)));
}

double ToSeconds(Instant at) {
  return std::chrono::duration<double>(at.time_since_epoch()).count();
}

// (kind, flags, source, session, collective, sequence, segment, number, contributors)
using HeaderTuple = std::tuple<int, int, int, std::uint32_t, std::uint32_t, std::uint32_t,
                               std::uint32_t, std::uint64_t, int>;

nb::bytes EncodeHeaderOf(const HeaderTuple& fields) {
  const auto& [kind, flags, source, session, collective, sequence, segment, number, contributors] =
      fields;
  Header header;
  header.kind = static_cast<DatagramKind>(kind);
  header.flags = static_cast<std::uint8_t>(flags);
  header.source = Rank(static_cast<std::uint16_t>(source));
  header.session = session;
  header.call = {.collective = CollectiveId(collective), .sequence = Sequence(sequence)};
  header.segment = SegmentIndex(segment);
  header.number = number;
  header.contributors = static_cast<std::uint16_t>(contributors);
  std::array<std::byte, kHeaderBytes> bytes;
  EncodeHeader(header, bytes);
  return ToBytes(bytes);
}

nb::object ParseHeaderOf(const nb::bytes& datagram) {
  const ParsedHeader parsed = ParseHeader(BytesOf(datagram));
  if (!parsed.header) {
    return nb::str(parsed.error == ParseError::kVersion ? "version" : "malformed");
  }
  const Header& h = *parsed.header;
  return nb::cast(HeaderTuple(static_cast<int>(h.kind), h.flags, h.source.value(), h.session,
                              h.call.collective.value(), h.call.sequence.value(), h.segment.value(),
                              h.number, h.contributors));
}

CollectiveSpec SpecOf(const std::string& name, const std::string& description,
                      std::uint64_t fingerprint, std::uint64_t elements, bool drop,
                      double deadline_s, const std::vector<int>& members) {
  CollectiveSpec spec;
  spec.name = name;
  spec.description = description;
  spec.fingerprint = fingerprint;
  spec.elements = elements;
  if (drop) spec.reduce_scatter = spec.all_gather = LatePolicy::kDrop;
  spec.reduce_scatter_deadline = At(deadline_s / 2).time_since_epoch();
  spec.all_gather_deadline = At(deadline_s / 2).time_since_epoch();
  for (const int member : members) spec.members.emplace_back(static_cast<std::uint16_t>(member));
  return spec;
}

nb::bytes EncodeAnnouncementOf(const std::string& name, const std::string& description,
                               std::uint64_t fingerprint, std::uint64_t elements, bool drop,
                               double deadline_s, const std::vector<int>& members,
                               std::size_t bytes_max) {
  std::vector<std::byte> out(bytes_max);
  const std::size_t size = EncodeAnnouncement(
      SpecOf(name, description, fingerprint, elements, drop, deadline_s, members), description,
      out);
  return ToBytes(std::span(out).first(size));
}

nb::object ParseAnnouncementOf(const nb::bytes& payload, int world_size) {
  const auto spec = ParseAnnouncement(BytesOf(payload), static_cast<std::uint16_t>(world_size));
  if (!spec) return nb::none();
  std::vector<int> members;
  for (const Rank member : spec->members) members.push_back(member.value());
  return nb::make_tuple(spec->name, spec->description, spec->fingerprint, spec->elements,
                        spec->reduce_scatter == LatePolicy::kDrop, members);
}

// The identity that an announcement must have.
std::uint32_t AnnouncementId(const nb::bytes& payload, int world_size) {
  const auto spec = ParseAnnouncement(BytesOf(payload), static_cast<std::uint16_t>(world_size));
  if (!spec) throw nb::value_error("not an announcement");
  return IdOf(*spec).value();
}

// A flow with numbers for cargo.
class TestFlow {
 public:
  TestFlow(std::size_t window_bytes_max, std::size_t datagram_bytes_max, bool same_host)
      : flow_({.window_bytes_max = window_bytes_max,
               .datagram_bytes_max = datagram_bytes_max,
               .same_host = same_host}) {}

  void SetWeight(double weight) { flow_.SetWeight(weight); }
  bool CanSend(std::size_t bytes) const { return flow_.CanSend(bytes); }
  bool MayStart(double now) { return flow_.MayStart(At(now)); }
  // In a batch of datagrams of its own length, unless `batch_bytes` is given.
  std::uint64_t Track(double now, std::uint32_t cargo, std::size_t bytes, std::size_t batch_bytes) {
    return flow_.Track(At(now),
                       {.kind = DatagramKind::kContribution, .segment = SegmentIndex(cargo)}, bytes,
                       std::max(bytes, batch_bytes));
  }
  // Delivered, lost (false), or refused (nothing).
  using Fates = std::vector<std::pair<std::uint32_t, std::optional<bool>>>;
  Fates HandleAcknowledgement(double now, const nb::bytes& payload) {
    const auto news = ParseAcknowledgement(BytesOf(payload));
    OR_CHECK(news.has_value());
    return ToFates(flow_.HandleAcknowledgement(At(now), *news));
  }
  Fates HandleTimeout(double now) { return ToFates(flow_.HandleTimeout(At(now))); }
  void AskForRoom() { flow_.AskForRoom(); }
  bool PopProbe() { return flow_.PopProbe(); }
  std::uint64_t TrackProbe(double now) {
    return flow_.Track(At(now), {.kind = DatagramKind::kProbe}, kOverheadBytes, kOverheadBytes);
  }
  std::optional<std::pair<std::size_t, std::size_t>> BlackHoleOf(double patience_s) const {
    const auto hole = flow_.black_hole(At(patience_s).time_since_epoch());
    if (!hole) return std::nullopt;
    return std::pair(hole->lost_bytes, hole->delivered_bytes);
  }
  double Timeout() const { return ToSeconds(flow_.timeout()); }
  std::size_t WindowBytes() const { return flow_.window_bytes(); }
  bool Seen(std::uint64_t number) const { return flow_.Seen(number); }
  void Record(double now, std::uint64_t number, bool at_once, bool refused) {
    flow_.Record(At(now), number, at_once ? Acknowledge::kAtOnce : Acknowledge::kSoon, refused);
  }
  bool AcknowledgementDue(double now) const { return flow_.AcknowledgementDue(At(now)); }
  nb::bytes MakeAcknowledgement(double now) {
    std::array<std::byte, kAcknowledgementBytesMax> payload;
    const std::size_t bytes = EncodeAcknowledgement(flow_.MakeAcknowledgement(At(now)), payload);
    return ToBytes(std::span(payload).first(bytes));
  }

 private:
  static Fates ToFates(const std::vector<Fate>& fates) {
    Fates pairs;
    for (const Fate& fate : fates) {
      std::optional<bool> delivered;
      if (fate.outcome != Fate::Outcome::kRefused) {
        delivered = fate.outcome == Fate::Outcome::kDelivered;
      }
      pairs.emplace_back(fate.cargo.segment.value(), delivered);
    }
    return pairs;
  }
  Flow flow_;
};

using FloatArray = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// An endpoint driven by hand, for float32 buckets; times in seconds.
class TestEndpoint {
 public:
  TestEndpoint(int rank, int world_size, const nb::bytes& secret, std::size_t datagram_bytes_max,
               double peer_timeout_s, double mismatch_timeout_s, const std::string& protection,
               std::uint32_t session, std::uint16_t lane, double call_timeout_s,
               std::uint32_t max_lag, bool suspend_on_lag, std::size_t early_bytes_max)
      : buffer_(std::size_t{1} << 16) {
    EndpointOptions options;
    options.rank = Rank(static_cast<std::uint16_t>(rank));
    options.world_size = static_cast<std::uint16_t>(world_size);
    options.session = session;
    options.lane = lane;
    options.early_bytes_max = early_bytes_max;
    options.max_lag = max_lag;
    if (protection == "none") options.protection = Protection::kNone;
    if (protection == "encrypt") options.protection = Protection::kEncrypt;
    if (secret.size() != options.secret.size()) throw std::invalid_argument("secret: 32 bytes");
    std::memcpy(options.secret.data(), secret.data(), secret.size());
    options.datagram_bytes_max = datagram_bytes_max;
    options.peer_timeout = At(peer_timeout_s).time_since_epoch();
    options.mismatch_timeout = At(mismatch_timeout_s).time_since_epoch();
    options.call_timeout = At(call_timeout_s).time_since_epoch();
    options.suspend_on_lag = suspend_on_lag;
    Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::Create(options);
    if (!endpoint.ok()) throw std::invalid_argument(endpoint.status().message());
    endpoint_ = std::move(endpoint.value());
  }

  // Returns the error, or an empty text. The array is reduced in place.
  std::string Submit(double now, const std::string& name, const std::string& description,
                     std::uint64_t fingerprint, bool drop, double deadline_s,
                     const std::vector<int>& members, std::uint32_t sequence, std::uint64_t token,
                     FloatArray array, bool carry) {
    Submission submission;
    submission.spec =
        SpecOf(name, description, fingerprint, array.size(), drop, deadline_s, members);
    if (carry) {
      submission.spec.reduce_scatter = submission.spec.all_gather = LatePolicy::kCarry;
    }
    submission.sequence = Sequence(sequence);
    submission.token = token;
    submission.leaves = {
        {.data = reinterpret_cast<std::byte*>(array.data()), .elements = array.size()}};
    return endpoint_->Submit(At(now), std::move(submission)).message();
  }
  // The same in any mode.
  std::string SubmitIn(double now, const std::string& mode, double deadline_s,
                       const std::vector<int>& members, std::uint32_t sequence, std::uint64_t token,
                       FloatArray array, bool drain, const std::string& wire_format) {
    Submission submission;
    submission.spec = SpecOf(mode, mode, 1, array.size(), mode == "lossy", deadline_s, members);
    if (mode == "agreed" || mode == "bounded") {
      submission.spec.reduce_scatter = LatePolicy::kCarry;
    }
    if (mode == "bounded") submission.spec.all_gather = LatePolicy::kCarry;
    if (wire_format == "bfloat16") submission.spec.wire_format = WireFormat::kBfloat16;
    if (wire_format == "int8") submission.spec.wire_format = WireFormat::kInt8;
    submission.sequence = Sequence(sequence);
    submission.token = token;
    submission.drain = drain;
    submission.leaves = {
        {.data = reinterpret_cast<std::byte*>(array.data()), .elements = array.size()}};
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
  // (token, message, missing_contributions, missing_results, slowest), or None.
  nb::object PollEvent() {
    const auto done = endpoint_->PollEvent();
    if (!done) return nb::none();
    last_stats_ = done->stats;
    return nb::make_tuple(done->token, done->status.message(), done->stats.missing_contributions,
                          done->stats.missing_results, done->stats.slowest.value());
  }
  // Of the last event.
  nb::dict LastStats() const {
    nb::dict stats;
    stats["carried"] = last_stats_.carried;
    stats["in_flight"] = last_stats_.in_flight;
    stats["live"] = last_stats_.live;
    return stats;
  }
  void Leave(double now, const std::string& why) {
    endpoint_->Leave(At(now), Status(StatusCode::kCancelled, why));
  }
  void Cancel(double now, const std::string& why) {
    endpoint_->Cancel(At(now), Status(StatusCode::kCancelled, why));
  }
  void GiveUp(double now, const std::string& name, const std::string& description,
              std::uint64_t fingerprint, std::uint64_t elements, const std::vector<int>& members,
              std::uint32_t sequence, const std::string& why) {
    Submission call;
    call.spec = SpecOf(name, description, fingerprint, elements, /*drop=*/false, 0.1, members);
    call.sequence = Sequence(sequence);
    endpoint_->GiveUp(At(now), std::move(call), Status(StatusCode::kCancelled, why));
  }
  bool Finished() const { return endpoint_->finished(); }
  std::size_t MemoryBytes() const { return endpoint_->memory_bytes(); }
  nb::dict CountersOf() const {
    nb::dict counters;
#define OPTIREDUCE_ADD(name, meaning) counters[#name] = endpoint_->counters().name;
    OPTIREDUCE_COUNTERS(OPTIREDUCE_ADD)
#undef OPTIREDUCE_ADD
    return counters;
  }

 private:
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<std::byte> buffer_;
  CallStats last_stats_;
};

void BindInstantTree(nb::module_& m) {
  const auto at = [](std::int64_t ns) { return Instant{} + Duration(ns); };
  nb::class_<InstantTree>(m, "InstantTree")
      .def(
          "__init__",
          [=](InstantTree* self, std::size_t size, std::int64_t ns) {
            new (self) InstantTree(size, at(ns));
          },
          nb::arg("size"), nb::arg("at"))
      .def("__getitem__", [](const InstantTree& self,
                             std::size_t index) { return (self[index] - Instant{}).count(); })
      .def("set",
           [=](InstantTree& self, std::size_t index, std::int64_t ns) { self.Set(index, at(ns)); })
      .def("first_before", [=](const InstantTree& self, std::int64_t ns, std::size_t from) {
        return self.FirstBefore(at(ns), from);
      });
}

void BindRing(nb::module_& m) {
  nb::class_<Ring<int>>(m, "Ring")
      .def(nb::init<>())
      .def("push_back", &Ring<int>::push_back)
      .def("push_front", &Ring<int>::push_front)
      .def("pop_front", &Ring<int>::pop_front)
      .def("clear", &Ring<int>::clear)
      .def("values", [](const Ring<int>& self) {
        std::vector<int> values;
        for (std::size_t i = 0; i < self.size(); ++i) values.push_back(self[i]);
        return values;
      });
}

void BindFlow(nb::module_& m) {
  nb::class_<TestFlow>(m, "Flow")
      .def(nb::init<std::size_t, std::size_t, bool>(), nb::arg("window_bytes_max"),
           nb::arg("datagram_bytes_max"), nb::arg("same_host") = false)
      .def("can_send", &TestFlow::CanSend)
      .def("set_weight", &TestFlow::SetWeight)
      .def("may_start", &TestFlow::MayStart)
      .def("track", &TestFlow::Track, nb::arg("now"), nb::arg("cargo"), nb::arg("bytes"),
           nb::arg("batch_bytes") = 0)
      .def("handle_acknowledgement", &TestFlow::HandleAcknowledgement)
      .def("handle_timeout", &TestFlow::HandleTimeout)
      .def("ask_for_room", &TestFlow::AskForRoom)
      .def("pop_probe", &TestFlow::PopProbe)
      .def("track_probe", &TestFlow::TrackProbe)
      .def("black_hole", &TestFlow::BlackHoleOf)
      .def("timeout", &TestFlow::Timeout)
      .def("window_bytes", &TestFlow::WindowBytes)
      .def("seen", &TestFlow::Seen)
      .def("record", &TestFlow::Record, nb::arg("now"), nb::arg("number"),
           nb::arg("at_once") = false, nb::arg("refused") = false)
      .def("acknowledgement_due", &TestFlow::AcknowledgementDue)
      .def("make_acknowledgement", &TestFlow::MakeAcknowledgement);
}

void BindEndpoint(nb::module_& m) {
  nb::class_<TestEndpoint>(m, "Endpoint")
      .def(nb::init<int, int, nb::bytes, std::size_t, double, double, const std::string&,
                    std::uint32_t, std::uint16_t, double, std::uint32_t, bool, std::size_t>(),
           nb::arg("rank"), nb::arg("world_size"), nb::arg("secret"),
           nb::arg("datagram_bytes_max") = 1472, nb::arg("peer_timeout_s") = 30.0,
           nb::arg("mismatch_timeout_s") = 10.0, nb::arg("protection") = "authenticate",
           nb::arg("session") = 77, nb::arg("lane") = 0, nb::arg("call_timeout_s") = 0.0,
           nb::arg("max_lag") = 2, nb::arg("suspend_on_lag") = false,
           nb::arg("early_bytes_max") = std::size_t{4} << 30)
      .def("submit", &TestEndpoint::Submit, nb::arg("now"), nb::arg("name"), nb::arg("description"),
           nb::arg("fingerprint"), nb::arg("drop"), nb::arg("deadline_s"), nb::arg("members"),
           nb::arg("sequence"), nb::arg("token"), nb::arg("array"), nb::arg("carry") = false)
      .def("submit_in", &TestEndpoint::SubmitIn, nb::arg("now"), nb::arg("mode"),
           nb::arg("deadline_s"), nb::arg("members"), nb::arg("sequence"), nb::arg("token"),
           nb::arg("array"), nb::arg("drain") = false, nb::arg("wire_format") = "float32")
      .def("handle_datagram", &TestEndpoint::HandleDatagram)
      .def("handle_timeout", &TestEndpoint::HandleTimeout)
      .def("poll_transmit", &TestEndpoint::PollTransmit)
      .def("poll_timeout", &TestEndpoint::PollTimeout)
      .def("poll_event", &TestEndpoint::PollEvent)
      .def("last_stats", &TestEndpoint::LastStats)
      .def("leave", &TestEndpoint::Leave)
      .def("cancel", &TestEndpoint::Cancel)
      .def("give_up", &TestEndpoint::GiveUp)
      .def("finished", &TestEndpoint::Finished)
      .def("memory_bytes", &TestEndpoint::MemoryBytes)
      .def("counters", &TestEndpoint::CountersOf);
}

}  // namespace

void BindProtocol(nb::module_& m) {
  m.attr("HEADER_BYTES") = kHeaderBytes;
  m.attr("OVERHEAD_BYTES") = kOverheadBytes;
  m.def("encode_header", &EncodeHeaderOf);
  m.def("parse_header", &ParseHeaderOf);
  m.def("encode_announcement", &EncodeAnnouncementOf);
  m.def("parse_announcement", &ParseAnnouncementOf);
  m.def("announcement_id", &AnnouncementId);
  m.def("bucket_segments", [](std::uint64_t elements, std::size_t element_bytes, int members,
                              std::size_t payload) {
    const BucketLayout layout(elements, element_bytes, static_cast<std::uint16_t>(members),
                              payload);
    std::vector<std::tuple<int, std::uint64_t, std::uint64_t>> segments;
    for (std::uint32_t s = 0; s < layout.segments(); ++s) {
      const ByteRange range = layout.Segment(SegmentIndex(s));
      segments.emplace_back(layout.OwnerOf(SegmentIndex(s)).value(), range.offset, range.bytes);
    }
    return segments;
  });
  BindInstantTree(m);
  BindRing(m);
  BindFlow(m);
  BindEndpoint(m);
}

}  // namespace optireduce
