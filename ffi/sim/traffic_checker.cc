#include "ffi/sim/traffic_checker.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/wire/wire.h"
#include "ffi/sim/setup.h"
#include "ffi/sim/time_checker.h"

namespace optireduce {
namespace {

// Chosen: a clean run sends (N - 1) / N * S in each stage and the headers, and nothing twice.
constexpr double kWireExcessMax = 1.05;
// Chosen: acknowledgements and probes that a call costs between two ranks, however small it is.
constexpr std::uint64_t kControlDatagramsPerCall = 6;
// Chosen: a probe, or an acknowledgement where little was lost.
constexpr std::uint64_t kControlBytesMax = 128;
// Source: kAcknowledgeEvery and kAcknowledgeDelayMax of flow.cc.
constexpr double kAcknowledgedTogether = 8;
constexpr double kAcknowledgeDelayUs = 500;
// Chosen: one of a few words of bits.
constexpr std::uint64_t kAcknowledgementBytes = 72;
// Chosen: an announcement with the longest description of a scenario.
constexpr std::uint64_t kAnnouncementBytesMax = 512;

}  // namespace

TrafficChecker::TrafficChecker(RunLog& log, const Bounds& bounds) : log_(log) {
  for (std::uint16_t rank = 0; rank < log.scenario.ranks; ++rank) {
    memory_bound_.push_back(bounds.Memory(Rank(rank)));
  }
}

void TrafficChecker::Delivered(Instant now, const Arrival& delivery, const Counters& counters) {
  LaneRecord& seen = log_.LaneAt(delivery.to);
  const std::size_t from = delivery.from.index() % log_.scenario.ranks;
  ++seen.delivered;
  // These are looked at after the tag.
  const std::uint64_t heard_count =
      counters.datagrams_received + counters.rejected_early + counters.rejected_mismatched;
  if (heard_count == std::exchange(seen.heard_count, heard_count)) return;
  Instant& heard = seen.heard[from];
  if (log_.IsSilentSince(now, heard)) log_.ranks[from].silent_until = now;
  const Instant asked = std::exchange(seen.asked[from], kNever);
  if (asked < now && heard > Instant{}) TimeChecker::RecordAnswer(seen, now - asked);
  heard = now;
  seen.first_heard[from] = std::min(seen.first_heard[from], now);
}

void TrafficChecker::Polled(Instant now, Rank node, const Transmit& transmit,
                            std::size_t batch_max) {
  LaneRecord& seen = log_.LaneAt(node);
  const Rank rank = RankOf(log_.scenario, node);
  if (transmit.to == rank || transmit.to.index() >= log_.ranks.size() ||
      log_.scenario.IsAbsent(transmit.to) || transmit.bytes == 0 ||
      transmit.bytes != SizeOf(transmit.pieces) || transmit.datagram_bytes == 0 ||
      transmit.datagram_bytes > log_.scenario.datagram_bytes) {
    return log_.Fail(now, rank, "a transmit goes nowhere, is empty, or has too large datagrams");
  }
  const std::size_t datagrams =
      (transmit.bytes + transmit.datagram_bytes - 1) / transmit.datagram_bytes;
  if (datagrams > batch_max) log_.Fail(now, rank, "a transmit has more datagrams than asked for");
  Instant& asked = seen.asked[transmit.to.index()];
  asked = std::min(asked, now);
  seen.sent += datagrams;
  seen.sent_bytes += transmit.bytes;
}

void TrafficChecker::Driven(Instant now, Rank node, const Endpoint& endpoint) {
  const LaneRecord& seen = log_.LaneAt(node);
  const Rank rank = RankOf(log_.scenario, node);
  const Counters& c = endpoint.counters();
  const std::uint64_t taken = c.datagrams_received + c.rejected_malformed + c.rejected_oversized +
                              c.rejected_version + c.rejected_foreign + c.rejected_unauthenticated +
                              c.rejected_replayed + c.rejected_removed + c.rejected_early +
                              c.rejected_mismatched;
  if (taken != seen.delivered) {
    log_.Fail(now, rank,
              "received + rejected is " + std::to_string(taken) + ", but it was given " +
                  std::to_string(seen.delivered) + " datagrams");
  }
  if (c.datagrams_sent != seen.sent || c.bytes_sent != seen.sent_bytes) {
    log_.Fail(now, rank,
              "it counts " + std::to_string(c.datagrams_sent) + " datagrams sent, but sent " +
                  std::to_string(seen.sent));
  }
  if (c.calls_completed != seen.completed || c.calls_failed != seen.failed) {
    log_.Fail(now, rank, "its counters of calls differ from the calls that ended");
  }
  if (endpoint.memory_bytes() > memory_bound_[rank.index()]) {
    log_.Fail(now, rank,
              "it holds " + std::to_string(endpoint.memory_bytes()) + " bytes; the bound is " +
                  std::to_string(memory_bound_[rank.index()]));
  }
}

bool TrafficChecker::IsClean(const Network& network) const {
  const NetworkFaults& faults = network.faults();
#define OPTIREDUCE_ADD_FAULT(name, meaning) +faults.name
  const std::uint64_t all = 0 OPTIREDUCE_FAULTS(OPTIREDUCE_ADD_FAULT);
#undef OPTIREDUCE_ADD_FAULT
  const Scenario& s = log_.scenario;
  // Datagrams that come early may be refused, and are then sent again.
  const std::uint64_t delays =
      s.start_skew_us + s.think_us + s.straggle_ppm + s.late_us + s.skip_ppm + s.tcp_load_percent;
  return all + delays == 0 && !s.has_failure() && s.lanes == 1 &&
         s.early_bytes_max >= Scenario().early_bytes_max;
}

TrafficChecker::Bytes TrafficChecker::BytesOf(const SimCollective& collective) const {
  const Scenario& s = log_.scenario;
  const std::uint64_t members = collective.spec.members.size();
  const std::uint64_t payload = (s.datagram_bytes - kOverheadBytes) / 8 * 8;
  const std::uint64_t owners = OwnersOf(collective.spec, CollectiveId(0), s.shard_bytes_min).count;
  const std::uint64_t shard = collective.bytes() / owners + 8;
  const std::uint64_t segments = owners * (shard / payload + 1);
  const std::uint64_t once = collective.bytes() + segments * kOverheadBytes;
  const std::uint64_t calls = s.calls + (collective.defers() ? 1 : 0);
  const std::uint64_t paths = members * (members - 1);
  std::uint64_t control =
      paths * (kAnnouncementBytesMax + calls * kControlDatagramsPerCall * kControlBytesMax);
  const double datagram_us = static_cast<double>(s.datagram_bytes * 8) *
                             static_cast<double>(s.slow_factor) / static_cast<double>(s.rate_mbps);
  // On a slow link, or among many members, every datagram of a peer is acknowledged by itself.
  const double apart_us = datagram_us * static_cast<double>(members - 1);
  if (apart_us * kAcknowledgedTogether > kAcknowledgeDelayUs) {
    control += 2 * (members - 1) * segments * calls * kAcknowledgementBytes;
  }
  const std::uint64_t stages = HasBothStages(collective.spec) ? 2 : 1;
  return {.data = static_cast<double>(stages * (members - 1) * once * calls),
          .control = static_cast<double>(control)};
}

void TrafficChecker::Finish(Instant now, const Network& network) {
  if (!IsClean(network)) return;
  Bytes all;
  for (const SimCollective& collective : log_.workload.collectives()) {
    const Bytes bytes = BytesOf(collective);
    all.data += bytes.data;
    all.control += bytes.control;
  }
  std::uint64_t sent = 0;
  for (const RankRecord& seen : log_.ranks) sent += seen.lanes.front().sent_bytes;
  if (static_cast<double>(sent) <= all.data * kWireExcessMax + all.control) return;
  log_.Fail(now, Rank(0),
            "a clean run sent " + std::to_string(sent) + " bytes; data and headers are " +
                std::to_string(all.data) + ", control is at most " + std::to_string(all.control));
}

}  // namespace optireduce
