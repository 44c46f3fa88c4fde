#include "ffi/sim/trace.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <optional>

#include "ffi/protocol/wire.h"

namespace optireduce {
namespace {

std::string_view NameOf(DatagramKind kind) {
  switch (kind) {
    case DatagramKind::kContribution:
      return "contribution";
    case DatagramKind::kResult:
      return "result";
    case DatagramKind::kAcknowledgement:
      return "acknowledgement";
    case DatagramKind::kAnnouncement:
      return "announcement";
    case DatagramKind::kProbe:
      return "probe";
    case DatagramKind::kLeave:
      return "leave";
    case DatagramKind::kMembership:
      return "membership";
  }
  return "unknown";
}

// The eight bytes at `from`, fewer at the end.
std::uint64_t Word(std::span<const std::byte> bytes, std::size_t from) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + from, std::min<std::size_t>(8, bytes.size() - from));
  return word;
}

}  // namespace

void Trace::Print(Instant now, Rank rank, std::string_view what) {
  *out_ << std::fixed << std::setprecision(6) << std::setw(14)
        << static_cast<double>(now.time_since_epoch().count()) / 1e6 << " ms  rank " << rank.value()
        << ' ' << what;
}

void Trace::Act(Instant now, Rank rank, std::string_view what, std::uint64_t detail,
                std::string_view text) {
  Add(now);
  Add(std::uint64_t{rank.value()} << 48 ^ detail);
  Add(what.size());
  if (out_ == nullptr) return;
  Print(now, rank, what);
  *out_ << ' ' << detail << (text.empty() ? "" : ": ") << text << '\n';
}

void Trace::Datagram(Instant now, Rank rank, std::string_view what, Rank peer,
                     std::span<const std::byte> datagram) {
  Add(now);
  Add(std::uint64_t{rank.value()} << 32 | std::uint64_t{peer.value()} << 16 | datagram.size());
  for (std::size_t i = 0; i < datagram.size(); i += 8) Add(Word(datagram, i));
  if (out_ == nullptr) return;
  Print(now, rank, what);
  *out_ << ' ' << peer.value() << ": " << datagram.size() << " bytes";
  if (const std::optional<Header> header = ParseHeader(datagram).header) {
    *out_ << ", " << NameOf(header->kind) << " number " << header->number << " from "
          << header->source.value() << " collective " << header->call.collective.value() << " call "
          << header->call.sequence.value() << " segment " << header->segment.value() << " flags "
          << int{header->flags};
  }
  *out_ << '\n';
}

}  // namespace optireduce
