#include "ffi/runtime/communicator_options.h"

#include "ffi/base/bytes.h"
#include "ffi/base/prng.h"

namespace optireduce {
// Chosen: any value that all ranks derive alike and others do not know would do.
Result<std::uint32_t> SessionTag(const Secret& secret) {
  Result<Key> key = DeriveKey(secret, "session");
  if (!key.ok()) return key.status();
  return ByteReader(key.value()).Read<std::uint32_t>();
}

std::vector<Rank> AbsentOf(const std::vector<RankAddress>& ranks) {
  std::vector<Rank> absent;
  for (std::uint16_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].ports.empty()) absent.emplace_back(r);
  }
  return absent;
}

EndpointOptions EndpointOptionsOf(const CommunicatorOptions& options, std::uint16_t lane,
                                  const std::vector<RankAddress>& ranks,
                                  std::size_t datagram_bytes_max,
                                  std::size_t peer_receive_buffer_bytes) {
  EndpointOptions made = options;
  made.lane = lane;
  made.datagram_bytes_max = datagram_bytes_max;
  made.receive_buffer_bytes = peer_receive_buffer_bytes;
  made.absent = AbsentOf(ranks);
  for (const RankAddress& rank : ranks) {
    made.same_host.push_back(rank.address == ranks[options.rank.index()].address);
  }
  if (options.deadline > Duration::zero()) made.late_budget = 0;
  return made;
}

std::optional<Faults> FaultsOf(const CommunicatorOptions& options, std::uint16_t lane) {
  if (!options.faults || options.faults->lane.value_or(lane) != lane) return std::nullopt;
  Faults faults = *options.faults;
  faults.seed = Mix(Mix(faults.seed + options.rank.value()) + lane);
  return faults;
}

void SetDeadlines(const CommunicatorOptions& options, CollectiveSpec& spec) {
  const Duration deadline =
      options.deadline > Duration::zero() ? options.deadline : options.deadline_max;
  // Half for each of two stages: both move the same number of bytes.
  if (HasReduceScatter(spec)) {
    spec.reduce_scatter_deadline = HasAllGather(spec) ? deadline / 2 : deadline;
  }
  spec.all_gather_deadline = deadline - spec.reduce_scatter_deadline;
}

}  // namespace optireduce
