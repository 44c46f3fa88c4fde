// The wire format: headers, and announcements of collectives.

#include "ffi/protocol/wire/wire.h"

#include <nanobind/operators.h>

#include <array>

#include "ffi/protocol/wire/sender_info.h"
#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace optireduce::testing {
namespace OR_FILE {

// A header in plain numbers.
struct PlainHeader {
  std::uint8_t kind = 0;
  std::uint8_t flags = 0;
  std::uint16_t source = 0;
  std::uint32_t session = 0;
  std::uint32_t collective = 0;
  std::uint32_t sequence = 0;
  std::uint32_t segment = 0;
  std::uint64_t number = 0;
  std::uint16_t contributors = 0;
  std::uint16_t note = 0;
  friend bool operator==(const PlainHeader&, const PlainHeader&) = default;
};

nb::bytes EncodeHeaderOf(const PlainHeader& plain) {
  Header header;
  header.kind = static_cast<DatagramKind>(plain.kind);
  header.flags = plain.flags;
  header.source = Rank(plain.source);
  header.session = plain.session;
  header.call = {.collective = CollectiveId(plain.collective),
                 .sequence = Sequence(plain.sequence)};
  header.segment = SegmentIndex(plain.segment);
  header.number = plain.number;
  header.contributors = plain.contributors;
  header.sender_info = plain.note;
  std::array<std::byte, kHeaderBytes> bytes;
  EncodeHeader(header, bytes);
  return ToBytes(bytes);
}

// The header, or the reason for its absence.
nb::object ParseHeaderOf(const nb::bytes& datagram) {
  const ParsedHeader parsed = ParseHeader(BytesOf(datagram));
  if (!parsed.header) {
    return nb::str(parsed.error == ParseError::kVersion ? "version" : "malformed");
  }
  const Header& header = *parsed.header;
  return nb::cast(PlainHeader{.kind = static_cast<std::uint8_t>(header.kind),
                              .flags = header.flags,
                              .source = header.source.value(),
                              .session = header.session,
                              .collective = header.call.collective.value(),
                              .sequence = header.call.sequence.value(),
                              .segment = header.segment.value(),
                              .number = header.number,
                              .contributors = header.contributors,
                              .note = header.sender_info});
}

nb::bytes EncodeAnnouncementOf(const Collective& collective, std::size_t bytes_max) {
  std::vector<std::byte> out(bytes_max);
  const std::size_t size = EncodeAnnouncement(collective.ToSpec(), collective.description, out);
  return ToBytes(std::span(out).first(size));
}

std::optional<Collective> ParseAnnouncementOf(const nb::bytes& payload, std::uint16_t world_size) {
  const auto spec = ParseAnnouncement(BytesOf(payload), world_size);
  if (!spec) return std::nullopt;
  return Collective::Of(*spec);
}

// The identity that an announcement must have.
std::uint32_t AnnouncementId(const nb::bytes& payload, std::uint16_t world_size) {
  const auto spec = ParseAnnouncement(BytesOf(payload), world_size);
  if (!spec) throw nb::value_error("not an announcement");
  return IdOf(*spec).value();
}

void BindHeader(nb::module_& m) {
  nb::class_<PlainHeader>(m, "Header")
      .def(
          "__init__",
          [](PlainHeader* self, std::uint8_t kind, std::uint8_t flags, std::uint16_t source,
             std::uint32_t session, std::uint32_t collective, std::uint32_t sequence,
             std::uint32_t segment, std::uint64_t number, std::uint16_t contributors,
             std::uint16_t note) {
            new (self) PlainHeader{kind,     flags,   source, session,      collective,
                                   sequence, segment, number, contributors, note};
          },
          nb::kw_only(), "kind"_a, "flags"_a = 0, "source"_a = 0, "session"_a = 0,
          "collective"_a = 0, "sequence"_a = 0, "segment"_a = 0, "number"_a = 0,
          "contributors"_a = 0, "note"_a = 0)
      .def_rw("kind", &PlainHeader::kind)
      .def_rw("flags", &PlainHeader::flags)
      .def_rw("source", &PlainHeader::source)
      .def_rw("session", &PlainHeader::session)
      .def_rw("collective", &PlainHeader::collective)
      .def_rw("sequence", &PlainHeader::sequence)
      .def_rw("segment", &PlainHeader::segment)
      .def_rw("number", &PlainHeader::number)
      .def_rw("contributors", &PlainHeader::contributors)
      .def_rw("note", &PlainHeader::note)
      .def(nb::self == nb::self);
  // Reads the code as a receiver does.
  const auto read = [](std::uint16_t code) {
    const SenderInfo note = DecodeSenderInfo(code);
    return std::pair(note.calls_with_results,
                     std::chrono::duration<double>(note.since_call).count());
  };
  m.def("parse_sender_note", read, "code"_a);
  m.def(
      "sender_note",
      [read](std::uint32_t calls, double since_call) {
        return read(EncodeSenderInfo(
            {.calls_with_results = calls, .since_call = At(since_call) - Instant{}}));
      },
      "calls"_a, "since_call"_a);
  m.attr("HEADER_BYTES") = kHeaderBytes;
  m.attr("OVERHEAD_BYTES") = kOverheadBytes;
  m.def("encode_header", &EncodeHeaderOf, "header"_a);
  m.def("parse_header", &ParseHeaderOf, "datagram"_a);
}

void BindCollective(nb::module_& m) {
  nb::class_<Collective>(m, "Collective")
      .def(
          "__init__",
          [](Collective* self, const std::string& name, const std::string& mode,
             const std::vector<int>& members, std::uint64_t elements,
             const std::string& description, std::uint64_t fingerprint, double deadline_s,
             const std::string& wire_format, const std::string& operation) {
            new (self) Collective{name,        mode,       members,     elements, description,
                                  fingerprint, deadline_s, wire_format, operation};
          },
          "name"_a, nb::kw_only(), "mode"_a = "exact", "members"_a, "elements"_a,
          "description"_a = "", "fingerprint"_a = 1, "deadline_s"_a = 0.1,
          "wire_format"_a = "float32", "operation"_a = "allreduce")
      .def_rw("name", &Collective::name)
      .def_rw("mode", &Collective::mode)
      .def_rw("members", &Collective::members)
      .def_rw("elements", &Collective::elements)
      .def_rw("description", &Collective::description)
      .def_rw("fingerprint", &Collective::fingerprint)
      .def_rw("deadline_s", &Collective::deadline_s)
      .def_rw("wire_format", &Collective::wire_format)
      .def_rw("operation", &Collective::operation)
      .def(nb::self == nb::self);
  m.def("encode_announcement", &EncodeAnnouncementOf, "collective"_a, "bytes_max"_a);
  m.def("parse_announcement", &ParseAnnouncementOf, "payload"_a, "world_size"_a);
  m.def("announcement_id", &AnnouncementId, "payload"_a, "world_size"_a);
}

void Bind(nb::module_& m) {
  BindHeader(m);
  BindCollective(m);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
