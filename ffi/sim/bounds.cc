#include "ffi/sim/bounds.h"

#include <algorithm>
#include <chrono>

#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/bucket/bucket_parts.h"
#include "ffi/protocol/wire/wire.h"
#include "ffi/sim/call_parts.h"
#include "ffi/sim/network.h"

namespace optireduce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Chosen: what a driver may be late that could not send and so does not know the next timeout.
constexpr Duration kBlockedSlack = microseconds(200);
// Longest duration of an exact call after all faults, beyond the time of its bytes.
// Source: kProbeIntervalMax of flow.cc is 1 s; chosen: two such silences in a row.
constexpr Duration kLivenessBase = std::chrono::seconds(2);
// Chosen: every byte may be sent so many times while the windows recover.
constexpr std::uint64_t kLivenessRepeats = 20;
// Chosen: a call waits for a part of the data of one earlier call, and of the data that has left
// before that.
constexpr std::uint64_t kLagCalls = 2;
// Source: kProbeIntervalMax of flow.cc.
constexpr Duration kLagBase = std::chrono::seconds(1);
// Chosen: a queue that holds less loses much of what two senders have under way.
constexpr std::uint64_t kRoomyQueueBytes = 1 << 17;
// From when a rank is suspected to a decision without it. Chosen: the last chance of the suspect,
// and ballots that find a third of their messages lost, see kLastChance and kPatience of
// membership.cc.
constexpr Duration kAgreementMax = milliseconds(2000);

}  // namespace

Duration Bounds::DriverSlack() const {
  const bool blocks = scenario_.refuse_ppm > 0 || scenario_.unaware == 0;
  return microseconds(scenario_.timer_late_us) + (blocks ? kBlockedSlack : Duration{});
}

Duration Bounds::Liveness() const {
  std::uint64_t bytes = 0;
  std::uint64_t datagrams = 0;
  for (const SimCollective& collective : workload_.collectives()) {
    const std::uint64_t segments = collective.bytes() / (scenario_.datagram_bytes / 2) + 1;
    // A drain brings the rest of all earlier calls.
    const std::uint64_t calls = collective.defers() ? scenario_.calls + 1 : 1;
    bytes += calls * (collective.bytes() + segments * (kOverheadBytes + kWireOverheadBytes));
    datagrams += 2 * calls * (segments + collective.spec.members.size());
  }
  // Everything that all ranks send may have to pass one link.
  bytes *= 2 * scenario_.ranks * kLivenessRepeats;
  const double rate_bytes_per_s = static_cast<double>(scenario_.rate_mbps) * 1e6 / 8 /
                                  static_cast<double>(scenario_.slow_factor);
  const double wire_s = static_cast<double>(bytes) / rate_bytes_per_s;
  // A datagram may be refused, and so may its acknowledgement.
  return kLivenessBase + Duration(static_cast<Duration::rep>(wire_s * 1e9)) +
         kLivenessRepeats * (microseconds(2 * scenario_.delay_us) + DriverSlack() +
                             microseconds(scenario_.refuse_ppm > 0 ? scenario_.refuse_us : 0)) +
         microseconds(2 * datagrams * scenario_.refuse_us * scenario_.refuse_ppm / 1'000'000);
}

Duration Bounds::Lag() const {
  const Scenario& s = scenario_;
  const bool clean =
      s.loss_ppm + s.burst_ppm + s.duplicate_ppm + s.reorder_ppm + s.stall_ppm + s.hold_ppm +
              s.corrupt_ppm + s.truncate_ppm + s.extend_ppm + s.foreign_ppm + s.garbage_ppm +
              s.replay_ppm + s.misdirect_ppm + s.refuse_ppm + s.cross_traffic_at_us +
              s.tcp_load_percent + s.unaware ==
          0 &&
      std::min({s.queue_bytes, s.socket_bytes, s.receive_buffer_bytes}) >= kRoomyQueueBytes;
  if (!clean) return Liveness();
  std::uint64_t bytes = 0;
  for (const SimCollective& collective : workload_.collectives()) {
    const std::uint64_t segments = collective.bytes() / (s.datagram_bytes / 2) + 1;
    const std::uint64_t ranks = collective.spec.members.size();
    bytes += collective.bytes() + (segments + ranks) * (kOverheadBytes + kWireOverheadBytes);
  }
  // Each of the two stages sends about that much over each link.
  const double wire_us = static_cast<double>(2 * kLagCalls * bytes * 8 * s.slow_factor) /
                         static_cast<double>(s.rate_mbps);
  return std::min(Liveness(), kLagBase + microseconds(static_cast<std::int64_t>(wire_us)));
}

Duration Bounds::Agreement() const {
  const std::uint64_t silent = scenario_.removals_max();
  if (silent == 0) return {};
  // The coordinator may fall silent, too, for a while or for good, which takes peer_timeout to
  // notice.
  std::uint64_t silence_us = (silent - 1) * scenario_.peer_timeout_us;
  if (!scenario_.cut_is_long()) silence_us += scenario_.cut_for_us;
  if (!scenario_.freeze_is_long()) silence_us += scenario_.freeze_for_us;
  if (!scenario_.lane_cut_is_long()) silence_us += scenario_.lane_cut_for_us;
  // Ranks that hear no peer, but are heard, disturb the others until they give up.
  if (scenario_.part_is_long() && scenario_.part_one_way != 0) {
    silence_us += scenario_.peer_timeout_us;
  }
  return silent * kAgreementMax + microseconds(silence_us);
}

Duration Bounds::Silence() const {
  return scenario_.removals_max() *
         (kAgreementMax + 2 * Duration(microseconds(scenario_.peer_timeout_us)));
}

Instant Bounds::FaultsEnd() const {
  const Scenario& s = scenario_;
  return At(std::max({s.faults_end_us, s.cut_at_us + s.cut_for_us, s.freeze_at_us + s.freeze_for_us,
                      s.part_at_us + s.part_for_us, s.lane_cut_at_us + s.lane_cut_for_us,
                      s.stop_at_us, s.leave_at_us, s.cross_traffic_end_us()}));
}

Instant Bounds::PathGivenUpBy() const {
  if (scenario_.mtu_at_us == 0) return Instant{};
  return At(scenario_.mtu_at_us + scenario_.peer_timeout_us);
}

bool Bounds::MayGiveUpPath(Instant now) const {
  // An earlier random loss may be the first that counts.
  return scenario_.mtu_at_us > 0 &&
         now >= At(std::max(scenario_.mtu_at_us, scenario_.peer_timeout_us));
}

std::size_t Bounds::CallsAhead() const {
  // Data of calls ahead may not be taken for as many as max_lag.
  const auto late_us = std::max(scenario_.straggle_us, scenario_.think_us);
  const bool crowded =
      scenario_.early_bytes_max < Scenario().early_bytes_max || microseconds(late_us) > Liveness();
  return crowded ? 0 : scenario_.max_lag;
}

std::size_t Bounds::ShardBytes(const SimCollective& collective) const {
  std::size_t bytes = 0;
  for (const BucketPart& part : CutBucket({.spec = collective.spec, .sequence = {}, .leaves = {}},
                                          scenario_.lanes, kSimCutBytesMin)) {
    const CollectiveSpec& spec = part.submission.spec;
    const Owners owners = OwnersOf(spec, CollectiveId(0), scenario_.shard_bytes_min);
    bytes += (spec.elements / owners.count + 1) * SizeOf(spec.element_type);
  }
  return bytes;
}

std::size_t Bounds::Memory(Rank rank) const {
  std::size_t bytes = 0;
  for (const SimCollective& collective : workload_.collectives()) {
    if (!collective.HasMember(rank)) continue;
    const std::size_t members = collective.spec.members.size();
    const std::size_t element_bytes = SizeOf(collective.spec.element_type);
    const std::size_t shard = ShardBytes(collective);
    // Contributions of the others to this rank's shard, and results that came before the local
    // call.
    const std::size_t call = shard * members + collective.bytes() + element_bytes;
    // One that is under way, those that peers still acknowledge, and those they are ahead. Lossy
    // calls do not wait for each other's acknowledgements, so that more of them stay open.
    bytes += call * ((collective.lossy() ? 4 : 2) + scenario_.max_lag);
    if (!collective.defers()) continue;
    // Calls that are over here and not yet at every rank (their sums, undelivered contributions,
    // and the deferred sends that joined them), deferred sends, and late data.
    const std::size_t over = 2 * (shard * members + collective.bytes());
    bytes += over * (scenario_.max_lag + 2) + 2 * collective.bytes() + shard;
    // Rounding errors.
    if (Rounds(collective.spec)) bytes += collective.bytes();
  }
  // With other members a collective is another one, beside the one before.
  return bytes * (1 + scenario_.removals_max());
}

}  // namespace optireduce
