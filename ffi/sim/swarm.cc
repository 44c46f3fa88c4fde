// Scenarios made from seeds.

#include <algorithm>
#include <iterator>

#include "ffi/base/check.h"
#include "ffi/base/prng.h"
#include "ffi/sim/scenario.h"

namespace optireduce {
namespace {

class Swarm {
 public:
  Swarm(std::uint64_t seed, ScenarioSize size)
      : prng_(Mix(seed) ^ (size == ScenarioSize::kSmall ? 0 : 1)), size_(size) {
    scenario_.seed = seed;
  }

  Scenario Make() {
    ChooseProgram();
    ChooseNetwork();
    ChooseOptions();
    ChooseTimes();
    ChooseFaults();
    ChooseFailure();
    ChooseWireFormat();
    ChooseSkips();
    ChooseHolds();
    ChooseLateness();
    ChooseLanes();
    ChooseGivingUp();
    ChooseMtu();
    ChooseStages();
    LeaveOutUnchecked();
    ChooseSlices();
    ChooseOverlap();
    // Buckets are small here.
    if (OneIn(2)) scenario_.relay_segments_min = Wild(1, 32);
    if (OneIn(2)) scenario_.shard_bytes_min = Wild(1, 1 << 14);
    ChooseRareCalls();
    ChooseSettling();
    ChooseEnding();
    ChooseAbsent();
    return scenario_;
  }

 private:
  bool OneIn(std::uint64_t n) { return prng_.Below(n) == 0; }
  std::uint64_t Between(std::uint64_t least, std::uint64_t most) {
    return least + prng_.Below(most - least + 1);
  }
  // Uniform over the orders of magnitude.
  std::uint64_t Wild(std::uint64_t least, std::uint64_t most) {
    std::uint64_t high = least;
    std::uint64_t doublings = 0;
    while (high < most) {
      high *= 2;
      ++doublings;
    }
    const std::uint64_t base = least << prng_.Below(doublings + 1);
    return std::min(most, base + prng_.Below(base));
  }
  std::uint32_t WildPpm(std::uint64_t most) { return static_cast<std::uint32_t>(Wild(100, most)); }

  void ChooseProgram();
  void ChooseCalls();
  void ChooseNetwork();
  void ChooseOptions();
  void ChooseTimes();
  void ChooseFaults();
  void ChooseFailure();
  void ChooseWireFormat();
  void ChooseSkips();
  void ChooseHolds();
  void ChooseLateness();
  void ChooseLanes();
  void ChooseGivingUp();
  void ChooseMtu();
  void LeaveOutUnchecked();
  void ChooseSlices();
  void ChooseStages();
  void ChooseOverlap();
  void ChooseRareCalls();
  void ChooseSettling();
  void ChooseEnding();
  void ChooseAbsent();
  void ChooseLaneCut();
  void ChooseRemoval();
  void ChoosePartition(std::uint64_t at_us);
  void ChooseSilence(std::uint64_t at_us, std::uint64_t rank);
  void ChooseMismatchTimeout();

  Prng prng_;
  ScenarioSize size_;
  Scenario scenario_;
};

void Swarm::ChooseProgram() {
  Scenario& s = scenario_;
  const bool small = size_ == ScenarioSize::kSmall;
  s.ranks = small ? (OneIn(20) ? 1 : Between(2, 8)) : Between(2, 16);
  s.element_type = Between(0, 5);
  // 8 KiB and 256 KiB, in elements of 4 bytes.
  s.elements = small ? Wild(1, 2048) : Wild(4096, 65'536);
  s.leaves = OneIn(2) ? 1 : Between(1, 8);
  s.mode = Between(0, 5);
  s.fill = Between(0, 1);
  ChooseCalls();
}

void Swarm::ChooseCalls() {
  Scenario& s = scenario_;
  s.collectives = OneIn(2) ? 1 : Between(2, 4);
  s.calls = Between(1, size_ == ScenarioSize::kSmall ? 6 : 3);
  s.subsets = s.collectives > 1 && s.ranks > 2 && OneIn(3);
  s.sequential = OneIn(3);
  s.shuffled = s.sequential == 0 && OneIn(2);
  if (OneIn(8)) s.sequence_first = prng_.Below(UINT32_MAX - 4096);
  if (OneIn(8)) s.sequence_step = Between(2, 64);
  s.leave_at_end = OneIn(3);
}

void Swarm::ChooseNetwork() {
  Scenario& s = scenario_;
  s.rate_mbps = size_ == ScenarioSize::kSmall ? Wild(10, 100'000) : Wild(100, 100'000);
  s.delay_us = Wild(1, 2000);
  if (OneIn(4)) {
    s.slow_rank = prng_.Below(s.ranks);
    s.slow_factor = Between(2, 10);
  }
  s.queue_bytes = OneIn(2) ? 1 << 20 : Wild(4096, 1 << 20);
  s.socket_bytes = OneIn(2) ? 1 << 18 : Wild(4096, 1 << 18);
  s.unaware = OneIn(10);
  if (OneIn(4)) {
    s.refuse_ppm = WildPpm(500'000);
    s.refuse_us = Wild(1, 5000);
  }
  if (OneIn(4)) s.timer_late_us = Wild(1, 2000);
}

void Swarm::ChooseOptions() {
  Scenario& s = scenario_;
  s.batch_max = OneIn(2) ? 1 : Between(2, 44);
  const std::uint64_t usual[] = {548, 576, 1472, 8972};
  s.datagram_bytes = usual[prng_.Below(std::size(usual))];
  s.incast = OneIn(2) ? 0 : Between(1, s.ranks);
  s.receive_buffer_bytes = OneIn(2) ? 2 << 20 : Wild(16'384, 2 << 20);
  s.max_lag = Between(1, 4);
  s.means = Between(0, 1);
  if (OneIn(2)) s.late_budget_ppm = WildPpm(500'000);
  if (OneIn(10)) s.early_bytes_max = Wild(1, 65'536);
}

void Swarm::ChooseTimes() {
  Scenario& s = scenario_;
  if (OneIn(2)) s.start_skew_us = Wild(1, 100'000);
  if (OneIn(2)) s.think_us = Wild(1, 20'000);
  if (OneIn(3)) {
    s.straggle_ppm = WildPpm(500'000);
    // Some delays exceed peer_timeout: a rank that computes for long is not dead.
    s.straggle_us = OneIn(4) ? Wild(1'000'000, 8'000'000) : Wild(100, 200'000);
  }
  s.faults_end_us = Wild(10'000, 1'000'000);
  s.peer_timeout_us = Between(3'000'000, 5'000'000);
  ChooseMismatchTimeout();
  s.reduce_scatter_deadline_us = Wild(100, 100'000);
  s.all_gather_deadline_us = Wild(100, 100'000);
}

void Swarm::ChooseMismatchTimeout() {
  Scenario& s = scenario_;
  // Ranks with different program orders wait for each other as long as the slowest of them
  // straggles.
  s.mismatch_timeout_us =
      2'000'000 + s.start_skew_us +
      s.collectives * s.calls * (s.straggle_us + s.late_us + s.think_us + s.faults_end_us);
  s.mismatch_timeout_us = std::min<std::uint64_t>(s.mismatch_timeout_us, 600'000'000);
}

void Swarm::ChooseFaults() {
  Scenario& s = scenario_;
  if (OneIn(5)) return;  // some runs have no faults
  const auto some = [this](std::uint64_t& field, std::uint64_t most) {
    if (OneIn(3)) field = WildPpm(most);
  };
  some(s.loss_ppm, 400'000);
  some(s.burst_ppm, 20'000);
  some(s.duplicate_ppm, 300'000);
  some(s.reorder_ppm, 500'000);
  some(s.stall_ppm, 10'000);
  some(s.corrupt_ppm, 200'000);
  some(s.truncate_ppm, 100'000);
  some(s.extend_ppm, 100'000);
  some(s.foreign_ppm, 300'000);
  some(s.garbage_ppm, 300'000);
  some(s.replay_ppm, 500'000);
  some(s.misdirect_ppm, 300'000);
  if (s.burst_ppm > 0) s.burst_us = Wild(100, 200'000);
  if (s.reorder_ppm > 0 || s.duplicate_ppm > 0) s.reorder_us = Wild(10, 100'000);
  if (s.stall_ppm > 0) s.stall_us = Wild(100, 100'000);
}

void Swarm::ChooseFailure() {
  Scenario& s = scenario_;
  if (s.ranks < 2) return;
  const std::uint64_t when_us = Wild(10, 200'000);
  switch (prng_.Below(12)) {
    case 0:
      s.stop_at_us = when_us;
      s.stop_rank = prng_.Below(s.ranks);
      break;
    case 1:
      s.leave_at_us = when_us;
      s.leave_rank = prng_.Below(s.ranks);
      break;
    case 2:
      s.cut_at_us = when_us;
      s.cut_rank = prng_.Below(s.ranks);
      s.cut_for_us = OneIn(2) ? Between(1, s.peer_timeout_us / 2)
                              : Between(2 * s.peer_timeout_us, 3 * s.peer_timeout_us);
      break;
    case 3:
      s.cancel_at_us = when_us;
      s.cancel_rank = prng_.Below(s.ranks);
      break;
    case 4:
      s.mismatch = Between(1, 4);
      s.mismatch_rank = prng_.Below(s.ranks);
      s.mode = static_cast<std::uint64_t>(SimMode::kExact);
      s.sequential = 1;
      s.shuffled = 0;
      s.subsets = 0;
      s.collectives = std::max<std::uint64_t>(s.collectives, 2);
      break;
    case 5:
      ChooseRemoval();
      break;
    default:
      break;
  }
}

// Its draws are its own, so that seeds keep their meaning in all other fields.
void Swarm::ChooseWireFormat() {
  constexpr std::uint64_t kWireFormatDraws = 0x5EED'F0A7;  // Chosen: any number.
  Prng prng(Mix(scenario_.seed ^ kWireFormatDraws));
  if (prng.Below(3) == 0) scenario_.wire_format = 1 + prng.Below(5);
}

// Its draws are its own.
void Swarm::ChooseSkips() {
  constexpr std::uint64_t kSkipDraws = 0x5EED'5213;  // Chosen: any number.
  Prng prng(Mix(scenario_.seed ^ kSkipDraws));
  if (prng.Below(4) == 0) scenario_.skip_ppm = 10'000 + prng.Below(490'000);
}

// Its draws are its own.
void Swarm::ChooseHolds() {
  constexpr std::uint64_t kHoldDraws = 0x5EED'401D;  // Chosen: any number.
  Prng prng(Mix(scenario_.seed ^ kHoldDraws));
  if (prng.Below(8) != 0) return;
  scenario_.hold_ppm = std::uint64_t{1} << prng.Below(14);
  scenario_.hold_us = 100 + prng.Below(100'000);
}

// A rank that ends calls that it never made, or whose program hangs. From draws of its own.
void Swarm::ChooseGivingUp() {
  constexpr std::uint64_t kGivingUpDraws = 0x5EED'91FE;  // Chosen: any number.
  Scenario& s = scenario_;
  Prng prng(Mix(s.seed ^ kGivingUpDraws));
  const std::uint64_t kind = prng.Below(16);
  if (kind > 2 || s.ranks < 2 || s.has_failure()) return;
  const std::uint64_t at_us = 1 + prng.Below(std::uint64_t{1} << prng.Below(16));
  if (kind < 2) {
    s.give_up_at_us = at_us;
    s.give_up_rank = prng.Below(s.ranks);
    s.give_up_calls = prng.Below(8) == 0 ? 100 : 1 + prng.Below(4);
    s.calls = std::min(s.calls + s.give_up_calls + prng.Below(3), 2 * s.give_up_calls + 8);
    ChooseMismatchTimeout();
    return;
  }
  s.hang_at_us = at_us;
  s.hang_rank = prng.Below(s.ranks);
  s.call_timeout_us = 1'000'000 + prng.Below(20'000'000);
  s.hang_for_us = 1 + prng.Below(2 * s.call_timeout_us);
}

// A path that stops passing long datagrams at some time. From draws of its own.
void Swarm::ChooseMtu() {
  constexpr std::uint64_t kMtuDraws = 0x5EED'0A70;  // Chosen: any number.
  // Chosen: control datagrams always pass.
  constexpr std::uint64_t kMtuMin = 600;
  Scenario& s = scenario_;
  prng_ = Prng(Mix(s.seed ^ kMtuDraws));
  if (!OneIn(20) || s.ranks < 2 || s.has_failure()) return;
  s.datagram_bytes = std::max<std::uint64_t>(s.datagram_bytes, 1472);
  s.elements = std::max<std::uint64_t>(s.elements, 2048);
  if (OneIn(2)) {
    s.calls = Between(4, 12);
    s.think_us = Wild(20'000, 3'000'000);
    ChooseMismatchTimeout();
  }
  s.mtu_at_us = OneIn(2) ? Wild(10, 200'000) : Wild(100'000, 5'000'000);
  s.mtu_bytes = Between(kMtuMin, s.datagram_bytes - 1);
  s.mtu_rank = prng_.Below(s.ranks);
  s.mtu_one_way = OneIn(2);
  if (OneIn(2) && s.ranks < 64) s.mtu_to = (s.mtu_rank + Between(1, s.ranks - 1)) % s.ranks;
}

// A rank that is late in enough calls for the others to learn its lateness.
void Swarm::ChooseLateness() {
  Scenario& s = scenario_;
  if (!OneIn(12) || s.mismatch != 0) return;
  s.late_us = Wild(2'000, 200'000);
  s.calls = std::max<std::uint64_t>(s.calls, Between(6, 30));
  if (!OneIn(3)) s.mode = static_cast<std::uint64_t>(SimMode::kBounded);
  if (s.late_budget_ppm == 0) s.late_budget_ppm = 10'000;
  s.late_once = OneIn(2) ? 1 : 0;
  ChooseMismatchTimeout();
}

// Faults that the checks do not know where ranks skip calls.
void Swarm::LeaveOutUnchecked() {
  Scenario& s = scenario_;
  if (!s.catches_up()) return;
  s.sequence_first = std::min(s.sequence_first, kSimSequenceMax);
  s.skip_ppm = 0;
  if (s.removals_max() > 0 || s.loses_data()) s.means = 0;
  // A rank that has given up its drain, and has no memory for calls ahead, never takes the data of
  // its peers: one that leaves waits for it, and the others keep asking.
  if (s.give_up_at_us > 0) s.early_bytes_max = Scenario().early_bytes_max;
  if (!s.may_outlive_members()) return;
  // Ranks that skip calls may send long datagrams on one path only: then its other end may be the
  // one to be removed.
  s.mtu_at_us = 0;
}

// Ranks that are removed together. From draws of its own.
void Swarm::ChooseSlices() {
  constexpr std::uint64_t kSliceDraws = 0x5EED'511C;  // Chosen: any number.
  Scenario& s = scenario_;
  Prng prng(Mix(s.seed ^ kSliceDraws));
  if (s.removable() == 0 || prng.Below(3) > 0) return;
  // The check of the error of such a path does not know lengths that passed just before.
  if (s.mtu_at_us > 0) return;
  Scenario chosen = s;
  chosen.ranks_per_slice = prng.Below(3) == 0 ? 3 : 2;
  // Chosen: at least three slices, so that the others go on.
  const std::uint64_t slices = std::max<std::uint64_t>(3, s.ranks / chosen.ranks_per_slice);
  chosen.ranks = slices * chosen.ranks_per_slice;
  if (Validate(chosen).ok()) s = chosen;
}

// Collectives with one stage. From draws of its own.
void Swarm::ChooseStages() {
  constexpr std::uint64_t kStagesDraws = 0x5EED'57A6;  // Chosen: any number.
  Prng prng(Mix(scenario_.seed ^ kStagesDraws));
  if (prng.Below(4) == 0) scenario_.stages = 1 + prng.Below(3);
}

void Swarm::ChooseRareCalls() {
  Scenario& s = scenario_;
  if (s.sequential != 0 && s.groups == 1 && s.collectives > 1 && OneIn(4)) s.rare = Between(2, 3);
}

// Ranks that are late until some time, and in step afterwards. From draws of its own. Collectives
// of every few steps may take longer.
void Swarm::ChooseSettling() {
  constexpr std::uint64_t kSettlingDraws = 0x5EED'57E9;  // Chosen: any number.
  prng_ = Prng(Mix(scenario_.seed ^ kSettlingDraws));
  // Chosen: such a run takes as long as fifty others.
  if (!OneIn(64)) return;
  Scenario s;
  s.seed = scenario_.seed;
  s.mode = static_cast<std::uint64_t>(SimMode::kBounded);
  s.ranks = Between(3, 8);
  s.sequential = 1;
  s.collectives = Between(1, 4);
  s.elements = Wild(1, 2048);
  s.settle_calls = 20;
  s.calls = 100;
  s.compute_us = Wild(1000, 20'000);
  // Chosen: a call of these links takes a millisecond.
  const std::uint64_t deadline_us = Wild(4000, 150'000);
  s.reduce_scatter_deadline_us = s.all_gather_deadline_us = deadline_us;
  s.peer_timeout_us = 30'000'000;
  s.faults_end_us = Wild(10'000, 300'000);
  if (OneIn(2)) s.start_skew_us = Wild(1000, 300'000);
  if (OneIn(2)) {
    s.straggle_ppm = WildPpm(300'000);
    s.straggle_us = Wild(1000, 300'000);
    s.straggle_end_us = s.faults_end_us;
  }
  if (OneIn(2)) s.loss_ppm = WildPpm(100'000);
  scenario_ = s;
}

// Ranks that are behind in several collectives, some of them at the end. Their waits for each other
// are longer than the bound, since the steps are. From draws of its own.
void Swarm::ChooseEnding() {
  constexpr std::uint64_t kEndingDraws = 0x5EED'E2D5;  // Chosen: any number.
  prng_ = Prng(Mix(scenario_.seed ^ kEndingDraws));
  // Chosen: as often as other programs of one kind.
  if (!OneIn(64)) return;
  Scenario s;
  s.seed = scenario_.seed;
  s.mode = static_cast<std::uint64_t>(SimMode::kBounded);
  s.ranks = Between(3, 8);
  s.sequential = 1;
  s.collectives = Between(2, 4);
  s.elements = Wild(16, 2048);
  s.calls = Between(8, 20);
  s.at_once = Between(0, s.collectives);
  s.compute_us = 500'000;
  s.straggle_ppm = 100'000;
  s.straggle_us = 6'000'000;
  s.overlap = Between(0, 1);
  s.peer_timeout_us = 30'000'000;
  s.faults_end_us = 1;
  s.reduce_scatter_deadline_us = s.all_gather_deadline_us = Wild(4000, 100'000);
  scenario_ = s;
  ChooseMismatchTimeout();
}

// A session that begins with empty places. From draws of its own, after all others.
void Swarm::ChooseAbsent() {
  constexpr std::uint64_t kAbsentDraws = 0x5EED'AB5E;  // Chosen: any number.
  Scenario& s = scenario_;
  Prng prng(Mix(s.seed ^ kAbsentDraws));
  const std::uint64_t slices = s.ranks / s.ranks_per_slice;
  if (prng.Below(8) != 0 || slices < 3) return;
  Scenario chosen = s;
  chosen.mode = static_cast<std::uint64_t>(SimMode::kBounded);
  chosen.stages = static_cast<std::uint64_t>(SimStages::kBoth);
  // Slices of which less than a half are absent, each with the same chance.
  std::uint64_t left = 1 + prng.Below((slices - 1) / 2);
  for (std::uint64_t slice = 0; slice < slices; ++slice) {
    if (prng.Below(slices - slice) >= left) continue;
    --left;
    for (std::uint64_t r = 0; r < s.ranks_per_slice; ++r) {
      chosen.absent |= std::uint64_t{1} << (slice * s.ranks_per_slice + r);
    }
  }
  if (Validate(chosen).ok()) s = chosen;
}

void Swarm::ChooseOverlap() {
  if (scenario_.think_us > 0) scenario_.overlap = OneIn(4);
}

// Several lanes, one of which may fall silent alone. From draws of its own.
void Swarm::ChooseLanes() {
  constexpr std::uint64_t kLaneDraws = 0x5EED'1A9E;  // Chosen: any number.
  Scenario& s = scenario_;
  prng_ = Prng(Mix(s.seed ^ kLaneDraws));
  if (!OneIn(5) || s.mismatch != 0) return;
  s.lanes = OneIn(3) ? 3 : 2;
  if (!s.has_failure() && s.ranks >= 3 && OneIn(2)) ChooseLaneCut();
}

void Swarm::ChooseLaneCut() {
  Scenario& s = scenario_;
  if (!OneIn(6)) s.mode = static_cast<std::uint64_t>(SimMode::kBounded);
  if (!OneIn(6)) s.leave_at_end = 0;
  s.calls = Between(4, 12);
  s.think_us = Wild(20'000, 3'000'000);
  ChooseMismatchTimeout();
  s.lane_cut_at_us = OneIn(2) ? Wild(10, 200'000) : Wild(100'000, 5'000'000);
  s.lane_cut_rank = prng_.Below(s.ranks);
  s.lane_cut_lane = prng_.Below(s.lanes);
  s.lane_cut_for_us = OneIn(4) ? Between(1, s.peer_timeout_us / 2)
                               : Between(5 * s.peer_timeout_us, 10 * s.peer_timeout_us);
}

// Ranks that fall silent while the others have calls to make.
void Swarm::ChooseRemoval() {
  Scenario& s = scenario_;
  s.ranks = std::max<std::uint64_t>(s.ranks, 3);
  if (!OneIn(6)) s.mode = static_cast<std::uint64_t>(SimMode::kBounded);
  if (!OneIn(6)) s.leave_at_end = 0;
  // Some programs have ended when the silence is detected, some continue for long.
  if (!OneIn(4)) {
    s.calls = Between(4, 12);
    s.think_us = Wild(200'000, 3'000'000);
  }
  ChooseMismatchTimeout();
  const std::uint64_t at_us = OneIn(2) ? Wild(10, 200'000) : Wild(100'000, 5'000'000);
  if (OneIn(4)) return ChoosePartition(at_us);
  const std::uint64_t rank = prng_.Below(s.ranks);
  ChooseSilence(at_us, rank);
  if (OneIn(2)) return;
  // A second rank, often during the agreement, which the lowest rank leads.
  const std::uint64_t lowest = rank == 0 ? 1 : 0;
  const std::uint64_t other = OneIn(2) ? lowest : (rank + Between(1, s.ranks - 1)) % s.ranks;
  ChooseSilence(OneIn(3) ? Wild(10, 10'000'000) : at_us + s.peer_timeout_us + Wild(1000, 500'000),
                other);
}

void Swarm::ChoosePartition(std::uint64_t at_us) {
  Scenario& s = scenario_;
  s.part_at_us = at_us;
  s.part_side = Between(1, (1ull << s.ranks) - 2);
  s.part_one_way = OneIn(3);
  s.part_for_us = OneIn(3) ? Between(1, s.peer_timeout_us / 2)
                           : Between(5 * s.peer_timeout_us, 6 * s.peer_timeout_us);
}

// One more way of falling silent, different from those of the rank so far.
void Swarm::ChooseSilence(std::uint64_t at_us, std::uint64_t rank) {
  Scenario& s = scenario_;
  const std::uint64_t for_us = OneIn(4) ? Between(1, s.peer_timeout_us / 2)
                                        : Between(s.peer_timeout_us / 2, 4 * s.peer_timeout_us);
  const std::uint64_t way = prng_.Below(6);
  if (way == 0 && s.leave_at_us == 0) {
    s.leave_at_us = at_us;
    s.leave_rank = rank;
  } else if (way == 1 && s.cut_at_us == 0) {
    s.cut_at_us = at_us;
    s.cut_for_us = for_us;
    s.cut_rank = rank;
  } else if (way < 4 && s.freeze_at_us == 0) {
    s.freeze_at_us = at_us;
    s.freeze_for_us = for_us;
    s.freeze_rank = rank;
  } else if (s.stop_at_us == 0) {
    s.stop_at_us = at_us;
    s.stop_rank = rank;
  }
}

}  // namespace

Scenario MakeScenario(std::uint64_t seed, ScenarioSize size) {
  const Scenario scenario = Swarm(seed, size).Make();
  OR_CHECK(Validate(scenario).ok());
  return scenario;
}

}  // namespace optireduce
