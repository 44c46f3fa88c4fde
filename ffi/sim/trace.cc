#include "ffi/sim/trace.h"

#include <iomanip>
#include <optional>

#include "ffi/protocol/wire/wire.h"
#include "ffi/sim/hash.h"

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
    case DatagramKind::kWaiting:
      return "waiting";
    case DatagramKind::kGaveUp:
      return "gave up";
    case DatagramKind::kDraining:
      return "draining";
    case DatagramKind::kReturned:
      return "returned";
  }
  return "unknown";
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
  Add(HashOf(datagram));
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
