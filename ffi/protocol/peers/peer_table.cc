#include "ffi/protocol/peers/peer_table.h"

#include <algorithm>
#include <utility>

namespace optireduce {
namespace {

// Bytes under way from all processes of this host to one of them: they lie in memory of the kernel.
// Chosen: less than a second-level cache. With the whole buffer of 8 MiB under way a call of 16 MiB
// among 4 ranks takes 1.09 times the processor time, and one of 64 MiB 1.03 to 1.2 times.
constexpr std::size_t kSameHostBytes = std::size_t{768} << 10;

}  // namespace

PeerTable::PeerTable(const EndpointOptions& options)
    : options_(options),
      sharers_(options.world_size),
      peers_(options.world_size),
      quiet_until_(options.world_size, Instant::min()),
      timeouts_(options.world_size, Instant::min()) {
  quiet_until_.Set(options.rank.index(), kNever);
  timeouts_.Set(options.rank.index(), kNever);
}

Status PeerTable::Connect() {
  const std::size_t others = std::max<std::size_t>(options_.world_size - 1u, 1);
  PathFacts flow{
      .datagram_bytes_max = options_.datagram_bytes_max, .sharers = others, .paths = &min_rtt_};
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    const Rank rank(r);
    if (rank == options_.rank) continue;
    Result<Sealer> seal = DirectionSealer(options_, options_.rank, rank);
    Result<Sealer> open = DirectionSealer(options_, rank, options_.rank);
    if (!seal.ok()) return seal.status();
    if (!open.ok()) return open.status();
    flow.same_host = IsOnThisHost(rank);
    flow.window_bytes_max = WindowBytesMax(rank, others);
    peers_[r] =
        std::make_unique<Peer>(rank, flow, std::move(seal.value()), std::move(open.value()));
  }
  return {};
}

bool PeerTable::IsOnThisHost(Rank rank) const {
  return rank.index() < options_.same_host.size() && options_.same_host[rank.index()];
}

std::size_t PeerTable::WindowBytesMax(Rank to, std::size_t sharers) const {
  const std::size_t buffer = options_.receive_buffer_bytes;
  if (IsOnThisHost(to)) return std::min(buffer, kSameHostBytes) / sharers;
  // Half of the buffer: the kernel charges each datagram more than its payload.
  return buffer / 2 / sharers;
}

void PeerTable::ShareWindows(const CollectiveSpec& spec) {
  const std::size_t before = sharers_.count();
  for (const Rank member : spec.members) {
    if (member != options_.rank) sharers_.Insert(member.index());
  }
  const std::size_t sharers = sharers_.count();
  if (sharers == before) return;
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    if (!peers_[r]) continue;
    Touch(Rank(r)).flow.SetSharers(sharers, WindowBytesMax(Rank(r), sharers));
  }
}

}  // namespace optireduce
