#include "ffi/sim/setup.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/base/prng.h"
#include "ffi/protocol/membership/shared_membership.h"
#include "ffi/protocol/options.h"

namespace optireduce {
namespace {

// Chosen: a variety of datagrams of another session.
constexpr int kForeignDatagrams = 8;

// Chosen: authentication without encryption is the default of programs, so most runs have it.
constexpr std::uint32_t kEncryptedPartsPerMillion = 250'000;

// Chosen: a run that needs more does not end; the largest medium seeds need a quarter of it.
constexpr std::uint64_t kEventsMax = 20'000'000;
// Chosen: in each call two ranks exchange a few datagrams and acknowledgements, each of which is
// three events, so the bound grows with the number of pairs, and with the segments of a pair.
constexpr std::uint64_t kEventsPerPair = 64;
// Chosen: contributions, results, acknowledgements of both, sent twice.
constexpr std::uint64_t kEventsPerSegment = 24;
// Source: float64, the largest element type.
constexpr std::uint64_t kElementBytesMax = 8;
// Chosen: a segment of a TCP burst has 1538 bytes and three events.
constexpr std::uint64_t kBurstBytesPerEvent = 256;
// Chosen: the time that probes with doubled intervals may need after the last call has ended.
constexpr Duration kRestMax = std::chrono::seconds(10);

// Different uses of one seed must draw different numbers. Chosen: any constants.
constexpr std::uint64_t kNetworkSalt = 0x6E6574;
constexpr std::uint64_t kSessionSalt = 0x73657373;
constexpr std::uint64_t kTcpBurstSalt = 0x746370;

std::uint64_t SessionOf(const Scenario& scenario) { return Mix(scenario.seed ^ kSessionSalt); }

EndpointOptions EndpointOf(const Scenario& s, Rank rank, std::uint64_t session) {
  EndpointOptions options;
  options.rank = rank;
  options.world_size = static_cast<std::uint16_t>(s.ranks);
  options.session = static_cast<std::uint32_t>(session);
  Prng prng(Mix(session));
  for (std::byte& byte : options.secret) byte = static_cast<std::byte>(prng.Below(256));
  if (prng.Chance(kEncryptedPartsPerMillion)) options.protection = Protection::kEncrypt;
  if (s.unprotected != 0) options.protection = Protection::kNone;
  options.datagram_bytes_max = s.datagram_bytes;
  options.peer_timeout = Microseconds(s.peer_timeout_us);
  options.mismatch_timeout = Microseconds(s.mismatch_timeout_us);
  options.call_timeout = Microseconds(s.call_timeout_us);
  options.incast = static_cast<std::uint16_t>(s.incast);
  options.ranks_per_slice = s.slices().ranks_per_slice();
  options.receive_buffer_bytes = s.receive_buffer_bytes;
  options.shard_bytes_min = s.shard_bytes_min;
  options.relay_segments_min = static_cast<std::uint32_t>(s.relay_segments_min);
  options.max_lag = static_cast<std::uint32_t>(s.max_lag);
  options.late_budget = static_cast<double>(s.late_budget_ppm) * 1e-6;
  options.early_bytes_max = s.early_bytes_max;
  return options;
}

std::unique_ptr<Endpoint> Create(const EndpointOptions& options,
                                 std::shared_ptr<SharedMembership> membership = nullptr) {
  Result<std::unique_ptr<Endpoint>> made = Endpoint::Create(options, std::move(membership));
  OR_CHECK(made.ok());
  return std::move(made.value());
}

}  // namespace

NetworkOptions NetworkOf(const Scenario& s) {
  NetworkOptions options;
  options.seed = Mix(s.seed ^ kNetworkSalt);
  // Each node is a lane of a rank.
  for (std::uint64_t node = 0; node < s.ranks * s.lanes; ++node) {
    const std::uint64_t factor = node % s.ranks == s.slow_rank ? s.slow_factor : 1;
    LinkOptions link{.rate_mbps = std::max<std::uint64_t>(s.rate_mbps / factor, 1),
                     .propagation = Microseconds(s.delay_us),
                     .queue_bytes_max = s.socket_bytes};
    options.up.push_back(link);
    link.queue_bytes_max = s.queue_bytes;
    options.down.push_back(link);
  }
  options.latency = {.median = Microseconds(s.latency_us),
                     .tail = static_cast<double>(s.latency_tail_percent) / 100,
                     .hold = Microseconds(s.latency_hold_us)};
  if (s.cross_traffic_at_us > 0) {
    const Instant start = At(s.cross_traffic_at_us);
    options.cross_traffic = {.start = start,
                             .end = start + Microseconds(s.cross_traffic_for_us),
                             .way_back = Microseconds(3 * s.delay_us)};
    options.cross_traffic_rank = Rank(static_cast<std::uint16_t>(s.cross_traffic_rank));
  }
  if (s.tcp_load_percent > 0) {
    const double bytes_per_s = static_cast<double>(s.rate_mbps) * 1e6 / 8;
    options.tcp_bursts = {
        .seed = Mix(s.seed ^ kTcpBurstSalt),
        .bytes_per_s = bytes_per_s * static_cast<double>(s.tcp_load_percent) / 100,
        .mean_bytes = static_cast<double>(s.tcp_burst_bytes),
        .end = At(s.faults_end_us),
        .way_back = Microseconds(3 * s.delay_us)};
  }
  const auto ppm = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  options.faults = {
      .loss_ppm = ppm(s.loss_ppm),
      .burst_ppm = ppm(s.burst_ppm),
      .burst = Microseconds(s.burst_us),
      .duplicate_ppm = ppm(s.duplicate_ppm),
      .reorder_ppm = ppm(s.reorder_ppm),
      .reorder = Microseconds(s.reorder_us),
      .stall_ppm = ppm(s.stall_ppm),
      .stall = Microseconds(s.stall_us),
      .hold_ppm = ppm(s.hold_ppm),
      .hold = Microseconds(s.hold_us),
      .corrupt_ppm = ppm(s.corrupt_ppm),
      .truncate_ppm = ppm(s.truncate_ppm),
      .extend_ppm = ppm(s.extend_ppm),
      .foreign_ppm = ppm(s.foreign_ppm),
      .garbage_ppm = ppm(s.garbage_ppm),
      .replay_ppm = ppm(s.replay_ppm),
      .misdirect_ppm = ppm(s.misdirect_ppm),
      .end = At(s.faults_end_us),
  };
  return options;
}

Duration TimeMax(const Scenario& s, std::size_t collectives) {
  // An upper bound: all calls of a rank in sequence, each with the maximum delay.
  const std::uint64_t calls_us =
      (s.calls + 1) *
      (collectives * (s.compute_us + s.think_us + s.straggle_us + s.late_us) + s.period_us);
  const std::uint64_t lossy_us =
      collectives * (s.calls + 1) * (s.reduce_scatter_deadline_us + s.all_gather_deadline_us);
  // If programs or ranks skip calls, two ranks may wait for each other in different collectives:
  // both answer, and each seems slow to the other.
  const std::uint64_t crossed_us =
      s.skip_ppm > 0 || s.catches_up() ? collectives * (s.calls + 1) * s.peer_timeout_us : 0;
  return kRestMax +
         Microseconds(
             s.start_skew_us + calls_us + lossy_us + crossed_us + s.faults_end_us + s.stop_at_us +
             s.leave_at_us + s.cancel_at_us + s.cut_at_us + s.cut_for_us + s.freeze_at_us +
             s.freeze_for_us + s.part_at_us + s.part_for_us + s.lane_cut_at_us + s.lane_cut_for_us +
             s.cross_traffic_at_us + (s.cross_traffic_at_us > 0 ? s.cross_traffic_for_us : 0) +
             2 * s.peer_timeout_us + s.give_up_at_us + s.hang_at_us + s.hang_for_us + s.mtu_at_us +
             2 * s.call_timeout_us + (s.mismatch != 0 ? 2 * s.mismatch_timeout_us : 0));
}

std::uint64_t EventsMax(const Scenario& s) {
  const std::uint64_t burst_bytes =
      s.rate_mbps * s.tcp_load_percent / 100 * s.faults_end_us / 8 * s.ranks * s.lanes;
  const std::uint64_t segments = s.elements * kElementBytesMax / s.datagram_bytes / s.ranks;
  const std::uint64_t of_pair = kEventsPerPair + kEventsPerSegment * segments;
  return std::max(kEventsMax, of_pair * s.ranks * s.ranks * (s.calls + 1)) +
         burst_bytes / kBurstBytesPerEvent;
}

std::optional<Instant> HangsUntil(const Scenario& s, Instant now, Rank rank) {
  const Instant from = At(s.hang_at_us);
  if (s.hang_at_us == 0 || rank.value() != s.hang_rank || now < from) return std::nullopt;
  const Instant until = from + Microseconds(s.hang_for_us);
  return now < until ? std::optional(until) : std::nullopt;
}

std::vector<std::unique_ptr<Endpoint>> MakeEndpoints(const Scenario& scenario, Rank rank) {
  EndpointOptions options = EndpointOf(scenario, rank, SessionOf(scenario));
  const auto lanes = static_cast<std::uint16_t>(scenario.lanes);
  options.lanes = lanes;
  // The endpoint of an absent rank is never driven.
  for (std::uint16_t r = 0; r < scenario.ranks && !scenario.IsAbsent(rank); ++r) {
    if (scenario.IsAbsent(Rank(r))) options.absent.emplace_back(r);
  }
  std::shared_ptr<SharedMembership> membership;
  if (lanes > 1) {
    membership = std::make_shared<SharedMembership>(rank, options.world_size, options.peer_timeout,
                                                    lanes, scenario.slices(), options.absent);
  }
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (options.lane = 0; options.lane < lanes; ++options.lane) {
    endpoints.push_back(Create(options, membership));
  }
  return endpoints;
}

std::vector<std::vector<std::byte>> ForeignDatagrams(const Scenario& scenario) {
  std::vector<std::vector<std::byte>> datagrams;
  if (scenario.foreign_ppm == 0 || scenario.ranks < 2) return datagrams;
  std::vector<std::byte> leaf(64);
  std::vector<std::byte> buffer(scenario.datagram_bytes);
  for (const bool knows_session : {false, true}) {
    EndpointOptions options = EndpointOf(scenario, Rank(0), SessionOf(scenario) + 1);
    if (knows_session) options.session = static_cast<std::uint32_t>(SessionOf(scenario));
    const std::unique_ptr<Endpoint> stranger = Create(options);
    CollectiveSpec spec;
    spec.name = "foreign";
    spec.elements = leaf.size() / SizeOf(spec.element_type);
    for (std::uint16_t r = 0; r < scenario.ranks; ++r) spec.members.push_back(Rank(r));
    Submission submission{
        .spec = spec, .sequence = Sequence(0), .leaves = {{leaf.data(), spec.elements}}};
    OR_CHECK(stranger->Submit(Instant{}, std::move(submission)).ok());
    for (int i = 0; i < kForeignDatagrams; ++i) {
      const std::optional<Transmit> transmit = stranger->PollTransmit(Instant{}, buffer, 1);
      if (!transmit) break;
      Join(transmit->pieces, datagrams.emplace_back());
    }
  }
  return datagrams;
}

}  // namespace optireduce
