// The longest wait of a bounded call for peers that are too far behind.

#include <algorithm>
#include <chrono>
#include <string>

#include "ffi/protocol/wire/wire.h"
#include "ffi/sim/checker.h"

namespace optireduce {
namespace {

using std::chrono::microseconds;

// Source: kPatienceMin and kFactor of answer_time.h.
constexpr Duration kPatienceMin = std::chrono::seconds(1);
constexpr int kPatienceFactor = 2;

// Chosen: a call waits for a part of the data of one earlier call, and of the data that has left
// before that.
constexpr std::uint64_t kLagCalls = 2;
// Source: kProbeIntervalMax of flow.cc.
constexpr Duration kLagBase = std::chrono::seconds(1);
// Chosen: a queue that holds less loses much of what two senders have under way.
constexpr std::uint64_t kRoomyQueueBytes = 1 << 17;

Instant At(std::uint64_t us) { return Instant{} + microseconds(us); }

}  // namespace

void Checker::NoteAnswer(SeenLane& seen, Duration gap) const {
  const Duration patience = std::max(kPatienceMin, kPatienceFactor * seen.longest_answer);
  seen.longest_answer = std::max(seen.longest_answer, std::min(gap, patience));
}

Instant Checker::LeftBehindBy(const Record& record, Rank member, Instant away) const {
  const Duration peer_timeout = microseconds(scenario_.peer_timeout_us);
  Duration patience = kPatienceMin;
  for (const SeenLane& lane : seen_[record.rank.index()].lanes) {
    // The usual response time was unknown then: Peer::Patience.
    if (lane.first_heard[member.index()] >= away) patience = peer_timeout;
    patience = std::max(patience, kPatienceFactor * lane.longest_answer);
  }
  // Once it answers again, only the network is waited for.
  return std::min(away + std::min(patience, peer_timeout), BackAt(record.rank, member));
}

Instant Checker::AwayFrom(Rank from, Rank rank) const {
  const Scenario& s = scenario_;
  const Seen& seen = seen_[rank.index()];
  Instant at = std::min(seen.stopped_at.value_or(kNever), seen.left_at.value_or(kNever));
  const auto either = [&](std::uint64_t who) { return rank.index() == who || from.index() == who; };
  if (s.freeze_at_us > 0 && rank.index() == s.freeze_rank) at = std::min(at, At(s.freeze_at_us));
  if (s.cut_at_us > 0 && either(s.cut_rank)) at = std::min(at, At(s.cut_at_us));
  if (s.lane_cut_at_us > 0 && either(s.lane_cut_rank)) at = std::min(at, At(s.lane_cut_at_us));
  if (s.part_for_us > 0 && ((s.part_side >> rank.index() ^ s.part_side >> from.index()) & 1) != 0) {
    at = std::min(at, At(s.part_at_us));
  }
  return at;
}

Duration Checker::LagBound() const {
  const Scenario& s = scenario_;
  const bool clean =
      s.loss_ppm + s.burst_ppm + s.duplicate_ppm + s.reorder_ppm + s.stall_ppm + s.corrupt_ppm +
              s.truncate_ppm + s.extend_ppm + s.foreign_ppm + s.garbage_ppm + s.replay_ppm +
              s.misdirect_ppm + s.refuse_ppm + s.rival_at_us + s.unaware ==
          0 &&
      std::min({s.queue_bytes, s.socket_bytes, s.receive_buffer_bytes}) >= kRoomyQueueBytes;
  if (!clean) return LivenessBound();
  std::uint64_t bytes = 0;
  for (const SimCollective& collective : workload_.collectives()) {
    const std::uint64_t segments = collective.bytes() / (s.datagram_bytes / 2) + 1;
    const std::uint64_t ranks = collective.spec.members.size();
    bytes += collective.bytes() + (segments + ranks) * (kOverheadBytes + kWireOverheadBytes);
  }
  // Each of the two stages sends about that much over each link.
  const double wire_us = static_cast<double>(2 * kLagCalls * bytes * 8 * s.slow_factor) /
                         static_cast<double>(s.rate_mbps);
  return std::min(LivenessBound(), kLagBase + microseconds(static_cast<std::int64_t>(wire_us)));
}

void Checker::CheckLag(Instant now, const Record& record) {
  const Scenario& s = scenario_;
  const CollectiveSpec& spec = record.collective.spec;
  // If programs skip calls, others may wait for such a rank.
  if (s.suspend != 0 || s.skip_ppm > 0) return;
  if (s.freeze_at_us > 0 && record.rank.value() == s.freeze_rank) return;
  Instant from = record.submitted_at + spec.reduce_scatter_deadline + spec.all_gather_deadline;
  from = std::max(
      {from, At(s.faults_end_us), At(s.rival_at_us > 0 ? s.rival_at_us + s.rival_for_us : 0)});
  const std::size_t ahead = IsCrowded() ? 0 : s.max_lag;
  const std::size_t index = record.call.index < ahead ? 0 : record.call.index - ahead;
  Instant slow_from = kNever;
  for (const Rank member : spec.members) {
    if (member == record.rank) continue;
    const auto next = next_index_.find({record.call.collective, member.index()});
    const bool called = next != next_index_.end() && next->second > index;
    const Instant away = AwayFrom(record.rank, member);
    // Of those that are behind, and answer, the program is slow.
    if (!called && away > now) return;
    if (!called) slow_from = std::min(slow_from, BackAt(record.rank, member));
    if (away <= now) from = std::max(from, LeftBehindBy(record, member, away));
  }
  const auto ready = ready_.find({record.call.collective, index});
  if (ready != ready_.end()) from = std::max(from, ready->second.at);
  // A rank behind a path that loses long datagrams answers, until that is given up.
  if (s.mtu_at_us > 0 && ready != ready_.end()) {
    const Instant lost = std::max(ready->second.at, At(s.mtu_at_us));
    from = std::max(from, lost + microseconds(s.peer_timeout_us));
  }
  const Duration bound = LagBound() + AgreementBound() + DriverSlack();
  if (std::min(now, slow_from) <= from + bound) return;
  Fail(now, record.rank,
       "a bounded call ended " + Milliseconds(now - from) +
           " after it had to wait for no peer that answers; the bound is " + Milliseconds(bound));
}

Instant Checker::BackAt(Rank from, Rank rank) const {
  const Scenario& s = scenario_;
  const Seen& seen = seen_[rank.index()];
  if (seen.stopped_at || seen.left_at) return kNever;
  Instant at{};
  const bool cut = rank.index() == s.cut_rank || from.index() == s.cut_rank;
  if (s.freeze_at_us > 0 && rank.index() == s.freeze_rank)
    at = At(s.freeze_at_us + s.freeze_for_us);
  if (s.cut_at_us > 0 && cut) at = std::max(at, At(s.cut_at_us + s.cut_for_us));
  const bool lane_cut = rank.index() == s.lane_cut_rank || from.index() == s.lane_cut_rank;
  if (s.lane_cut_at_us > 0 && lane_cut) {
    at = std::max(at, At(s.lane_cut_at_us + s.lane_cut_for_us));
  }
  if (s.part_for_us > 0) at = std::max(at, At(s.part_at_us + s.part_for_us));
  return at;
}

Instant Checker::WaitsFrom(Instant now, const Record& record) const {
  const SimCall call = record.call;
  const CollectiveSpec& spec = record.collective.spec;
  if (!RetainsLateData(spec) || workload_.IsDrain(record.collective, call)) {
    return ready_.at({call.collective, call.index}).at;
  }
  // Others may wait for a rank that has skipped calls until it is given up.
  if (scenario_.skip_ppm > 0 && OutlivesMembers(spec)) return now;
  // A rank takes data of calls that its program has not made, of max_lag at most; where it is late
  // for long, these may be later ones than this.
  const std::size_t ahead = IsCrowded() ? 0 : scenario_.max_lag;
  const Instant from =
      record.submitted_at + spec.reduce_scatter_deadline + spec.all_gather_deadline;
  if (call.index < ahead) return from;
  const auto ready = ready_.find({call.collective, call.index - ahead});
  if (ready == ready_.end() || ready->second.members < spec.members.size()) return now;
  // A stopped rank may not have announced its last calls.
  const Instant told = ready->second.at + LivenessBound();
  for (const Rank member : spec.members) {
    if (seen_[member.index()].stopped_at.value_or(told) < told) return now;
  }
  return std::max(from, ready->second.at);
}

bool Checker::IsCrowded() const {
  const auto late_us = std::max(scenario_.straggle_us, scenario_.think_us);
  return scenario_.early_bytes_max < Scenario().early_bytes_max ||
         microseconds(late_us) > LivenessBound();
}

}  // namespace optireduce
