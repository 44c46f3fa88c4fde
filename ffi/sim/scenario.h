// One simulated run, as a value: the calls of the ranks, the network, and the faults. Made from a
// seed, or parsed from one line of text; prints as the line that replays it.

#ifndef FFI_SIM_SCENARIO_H_
#define FFI_SIM_SCENARIO_H_

#include <bit>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/lifecycle/catch_up.h"
#include "ffi/protocol/membership/slices.h"
#include "ffi/protocol/options.h"

namespace optireduce {

// The durations and times of a scenario.
constexpr Duration Microseconds(std::uint64_t us) {
  return std::chrono::microseconds(static_cast<std::int64_t>(us));
}
constexpr Instant At(std::uint64_t us) { return Instant{} + Microseconds(us); }

// The highest number of first calls where ranks skip calls. Chosen: calls and skipped ones never
// reach kCatchUpPositionMax.
inline constexpr std::uint64_t kSimSequenceMax = kCatchUpPositionMax.value() / 2;

// Values of the fields that are words, in the order of the words in scenario.cc.
enum class SimElementType : std::uint64_t {
  kFloat32,
  kBfloat16,
  kFloat16,
  kFloat64,
  kInt32,
  kMixed
};
enum class SimWireFormat : std::uint64_t { kFloat32, kBfloat16, kInt8, kAuto, kFloat4, kMixed };
enum class SimMode : std::uint64_t { kExact, kLossy, kMixed, kBounded, kAgreed, kAny };
enum class SimFill : std::uint64_t { kIntegers, kFloats };
enum class SimStages : std::uint64_t { kBoth, kReduceScatter, kAllGather, kMixed };
enum class SimMismatch : std::uint64_t {
  kNone,
  kFingerprint,
  kName,
  kExtraCall,
  kElements,
  kOneStage,
  kLoneCall,
};

// X(name, default, least, most, meaning). A field that a line omits has its default, which is "no
// fault, one call of two ranks"; a changed default would change the meaning of old lines.
#define OPTIREDUCE_SCENARIO_FIELDS(X)                                                              \
  X(seed, 0, 0, UINT64_MAX, "of every random draw of the run")                                     \
  X(ranks, 2, 1, 1024, "ranks of the session")                                                     \
  X(collectives, 1, 1, 16, "collectives, whose calls interleave")                                  \
  X(calls, 1, 1, 4096, "calls of each collective")                                                 \
  X(elements, 256, 1, 1 << 24, "of collective 0; the others have a random part of it")             \
  X(leaves, 1, 1, 16, "most leaves of a bucket")                                                   \
  X(element_type, 0, 0, 5, "float32 bfloat16 float16 float64 int32 mixed")                         \
  X(wire_format, 0, 0, 5, "float32 bfloat16 int8 auto float4 mixed; of collectives of float32")    \
  X(mode, 0, 0, 5, "exact lossy mixed bounded agreed any")                                         \
  X(stages, 0, 0, 3, "both reduce_scatter all_gather mixed; all_gather is exact or lossy")         \
  X(fill, 0, 0, 1, "integers (any order of adding is exact) floats (only rank order is)")          \
  X(subsets, 0, 0, 1, "1: collectives after the first have a random subset as members")            \
  X(groups, 1, 1, 512, "above 1: a call is one within a group and one across all groups")          \
  X(group_stages, 0, 0, 1, "1: reduce_scatter, call across of a shard, all_gather; with groups")   \
  X(sequential, 0, 0, 1, "1: a rank starts a call only after the end of the previous one")         \
  X(shuffled, 0, 0, 1, "1: each rank starts the collectives in an order of its own")               \
  X(sequence_first, 0, 0, UINT32_MAX - 4096, "sequence of the first calls")                        \
  X(sequence_step, 1, 1, 64, "growth of the sequence from call to call")                           \
  X(skip_ppm, 0, 0, 1'000'000, "chance that a rank skips a call of mode bounded")                  \
  X(start_skew_us, 0, 0, 60'000'000, "most by which a rank starts later than the first")           \
  X(compute_us, 0, 0, 60'000'000,                                                                  \
    "least time between the end of a call and the start of the next")                              \
  X(think_us, 0, 0, 60'000'000, "most that it is longer")                                          \
  X(overlap, 0, 0, 1,                                                                              \
    "1: the time counts from the start of the call, which the program waits for later")            \
  X(period_us, 0, 0, 60'000'000, "calls start at multiples of it, if the previous one has ended")  \
  X(straggle_ppm, 0, 0, 1'000'000, "chance that a rank starts a call late")                        \
  X(straggle_us, 0, 0, 60'000'000, "most by which the call is late")                               \
  X(straggle_end_us, 0, 0, 600'000'000, "until then calls are late by chance; 0: always")          \
  X(rare, 0, 0, 4096, "with sequential: steps for each call of the last collective; 0: one")       \
  X(settle_calls, 0, 0, 4096, "calls after the last fault, then all data is in time; 0: any")      \
  X(late_us, 0, 0, 60'000'000, "by which the last rank starts each call late")                     \
  X(late_once, 0, 0, 1, "1: with sequential: only the first call of each step")                    \
  X(meet_calls, 0, 0, 4096, "after so many calls programs meet outside of the session; 0: never")  \
  X(at_once, 0, 0, 16, "with sequential: 1: drains begin at once; n: beside n - 1 last calls")     \
  X(leave_at_end, 0, 0, 1, "1: a rank leaves after the end of its program, its peers served")      \
  X(rate_mbps, 1000, 1, 1'000'000, "of every link, in 10^6 bit/s")                                 \
  X(delay_us, 50, 0, 1'000'000, "propagation of every link")                                       \
  X(latency_us, 0, 0, 1'000'000, "median latency between two links; log-normal")                   \
  X(latency_tail_percent, 100, 100, 10'000, "its 99th percentile, in percent of the median")       \
  X(latency_hold_us, 1000, 1, 60'000'000, "time for which two ranks keep one draw of it")          \
  X(slow_rank, 0, 0, 63, "rank whose links are slower")                                            \
  X(slow_factor, 1, 1, 1000, "by how much")                                                        \
  X(queue_bytes, 1 << 20, 2048, 1 << 30, "of each output queue of the switch")                     \
  X(socket_bytes, 1 << 18, 2048, 1 << 30, "of the queue at each up-link")                          \
  X(unaware, 0, 0, 1, "1: a full up-link drops instead of refusing")                               \
  X(refuse_ppm, 0, 0, 900'000, "chance that the network accepts no more for a while")              \
  X(refuse_us, 100, 1, 1'000'000, "most that this lasts")                                          \
  X(timer_late_us, 0, 0, 1'000'000, "most by which a driver wakes too late")                       \
  X(batch_max, 1, 1, 64, "most datagrams in one transmit")                                         \
  X(datagram_bytes, 1472, 548, 65'507, "largest datagram of the session")                          \
  X(unprotected, 0, 0, 1, "1: datagrams have no tags, which only costs time; see scenario.cc")     \
  X(incast, 0, 0, 1023, "option of the endpoints")                                                 \
  X(receive_buffer_bytes, 2 << 20, 2048, 1 << 30, "option of the endpoints")                       \
  X(shard_bytes_min, 1024, 0, 1 << 30, "option of the endpoints")                                  \
  X(relay_segments_min, 256, 0, 1 << 30, "option of the endpoints")                                \
  X(ranks_per_slice, 1, 1, 32, "consecutive ranks that are removed together")                      \
  X(max_lag, 2, 1, 64, "option of the endpoints")                                                  \
  X(means, 0, 0, 1, "1: programs average, and the present ranks stand for absent ones")            \
  X(late_budget_ppm, 0, 0, 500'000, "of endpoints; 0: deadlines do not learn")                     \
  X(early_bytes_max, 1ull << 32, 0, 1ull << 40, "option of the endpoints")                         \
  X(peer_timeout_us, 3'000'000, 1, 600'000'000, "option of the endpoints")                         \
  X(mismatch_timeout_us, 2'000'000, 1, 600'000'000, "option of the endpoints")                     \
  X(reduce_scatter_deadline_us, 20'000, 1, 60'000'000, "of calls with a deadline")                 \
  X(all_gather_deadline_us, 20'000, 1, 60'000'000, "of calls with a deadline")                     \
  X(faults_end_us, 1'000'000, 0, 600'000'000, "from then on no new fault: the liveness phase")     \
  X(loss_ppm, 0, 0, 1'000'000, "datagrams lost alone")                                             \
  X(burst_ppm, 0, 0, 1'000'000, "chance that everything of a rank is lost for a while")            \
  X(burst_us, 1000, 0, 10'000'000, "most that this lasts")                                         \
  X(duplicate_ppm, 0, 0, 1'000'000, "datagrams that arrive more than once")                        \
  X(reorder_ppm, 0, 0, 1'000'000, "datagrams held back")                                           \
  X(reorder_us, 1000, 0, 10'000'000, "most by which, for copies too")                              \
  X(stall_ppm, 0, 0, 1'000'000, "chance that an up-link stalls")                                   \
  X(stall_us, 1000, 0, 10'000'000, "most that this lasts")                                         \
  X(hold_ppm, 0, 0, 1'000'000, "chance that nothing reaches a rank for a while")                   \
  X(hold_us, 1000, 0, 10'000'000, "most that this lasts")                                          \
  X(corrupt_ppm, 0, 0, 1'000'000, "datagrams with flipped bits")                                   \
  X(truncate_ppm, 0, 0, 1'000'000, "datagrams cut short")                                          \
  X(extend_ppm, 0, 0, 1'000'000, "datagrams that grow")                                            \
  X(foreign_ppm, 0, 0, 1'000'000, "injected datagrams of other sessions")                          \
  X(garbage_ppm, 0, 0, 1'000'000, "injected random bytes")                                         \
  X(replay_ppm, 0, 0, 1'000'000, "old datagrams that are replayed")                                \
  X(misdirect_ppm, 0, 0, 1'000'000, "old datagrams that are sent to another rank")                 \
  X(cross_traffic_at_us, 0, 0, 600'000'000,                                                        \
    "when a foreign bulk TCP to cross_traffic_rank begins; 0: never")                              \
  X(cross_traffic_for_us, 1'000'000, 1, 600'000'000, "for how long")                               \
  X(cross_traffic_rank, 0, 0, 63, "the rank whose down-link it shares")                            \
  X(tcp_load_percent, 0, 0, 95, "of each down-link, by foreign TCP bursts of heavy-tailed sizes")  \
  X(tcp_burst_bytes, 1'000'000, 2000, 1 << 30, "mean size of such a burst")                        \
  X(stop_at_us, 0, 0, 600'000'000, "when stop_rank falls silent for good; 0: never")               \
  X(stop_rank, 0, 0, 63, "the rank that does")                                                     \
  X(leave_at_us, 0, 0, 600'000'000, "when leave_rank leaves in the middle; 0: never")              \
  X(leave_rank, 0, 0, 63, "the rank that does")                                                    \
  X(cancel_at_us, 0, 0, 600'000'000, "when cancel_rank cancels its calls and continues; 0: never") \
  X(cancel_rank, 0, 0, 63, "the rank that does")                                                   \
  X(cut_at_us, 0, 0, 600'000'000, "when cut_rank is cut off from all others; 0: never")            \
  X(cut_for_us, 0, 0, 600'000'000, "for how long; its program continues")                          \
  X(cut_rank, 0, 0, 63, "the rank that is")                                                        \
  X(freeze_at_us, 0, 0, 600'000'000, "when freeze_rank freezes, program included; 0: never")       \
  X(freeze_for_us, 0, 0, 600'000'000, "for how long")                                              \
  X(freeze_rank, 0, 0, 63, "the rank that does")                                                   \
  X(part_at_us, 0, 0, 600'000'000, "when the ranks of part_side are cut off from the others")      \
  X(part_for_us, 0, 0, 600'000'000, "for how long; 0: never")                                      \
  X(part_side, 1, 1, UINT64_MAX, "these ranks, a bit for each")                                    \
  X(part_one_way, 0, 0, 1, "1: the others do not hear them, but they hear the others")             \
  X(give_up_at_us, 0, 0, 600'000'000, "when give_up_rank begins to end calls that it never made")  \
  X(give_up_calls, 1, 1, 4096, "how many of each collective; then it continues")                   \
  X(give_up_rank, 0, 0, 63, "the rank that does")                                                  \
  X(hang_at_us, 0, 0, 600'000'000, "when the program of hang_rank hangs; 0: never")                \
  X(hang_for_us, 1'000'000, 1, 600'000'000, "for how long, while its endpoint answers")            \
  X(hang_rank, 0, 0, 63, "the rank whose program does")                                            \
  X(call_timeout_us, 0, 0, 600'000'000, "option of the endpoints; 0: never")                       \
  X(mismatch, 0, 0, 6, "none fingerprint name extra_call elements stages lone_call")               \
  X(mismatch_rank, 0, 0, 63, "the rank whose program differs")                                     \
  X(lanes, 1, 1, 8, "endpoints of each rank, each with its own links; buckets are split")          \
  X(lane_cut_at_us, 0, 0, 600'000'000, "when one lane of lane_cut_rank falls silent; 0: never")    \
  X(lane_cut_for_us, 0, 0, 600'000'000, "for how long")                                            \
  X(lane_cut_rank, 0, 0, 63, "the rank whose lane does")                                           \
  X(lane_cut_lane, 0, 0, 7, "the lane that does")                                                  \
  X(mtu_at_us, 0, 0, 600'000'000, "start of the loss of long datagrams; 0: never")                 \
  X(mtu_bytes, 1000, 1, 65'507, "the longest datagrams that pass the links of mtu_rank then")      \
  X(mtu_rank, 0, 0, 63, "the rank behind those links")                                             \
  X(mtu_one_way, 0, 0, 1, "1: only datagrams from it are lost")                                    \
  X(mtu_to, 64, 0, 64, "only datagrams from mtu_rank to this rank are lost; 64: to all")           \
  X(absent, 0, 0, UINT64_MAX, "ranks whose places are empty from the start, a bit for each")

struct Scenario {
#define OPTIREDUCE_DECLARE_FIELD(name, default_value, least, most, meaning) \
  std::uint64_t name = default_value;
  OPTIREDUCE_SCENARIO_FIELDS(OPTIREDUCE_DECLARE_FIELD)
#undef OPTIREDUCE_DECLARE_FIELD

  friend bool operator==(const Scenario&, const Scenario&) = default;

  SimMode sim_mode() const { return static_cast<SimMode>(mode); }
  SimStages sim_stages() const { return static_cast<SimStages>(stages); }
  SimMismatch sim_mismatch() const { return static_cast<SimMismatch>(mismatch); }
  // A rank disappears or makes different calls: errors are expected.
  bool has_failure() const { return LastingFailures() + PassingFailures() > 0; }
  // A rank may leave data undelivered: a drain does not return all data.
  bool loses_data() const {
    return LastingFailures() > 0 || cut_is_long() || freeze_is_long() || part_is_long() ||
           lane_cut_is_long();
  }
  // Calls fail only if one rank gives them up, and programs continue with the next call.
  bool only_gives_up() const {
    return give_up_at_us > 0 &&
           LastingFailures() + PassingFailures() + leave_at_end == give_up_at_us;
  }
  // The place of the rank is empty: no process of it takes part.
  bool IsAbsent(Rank rank) const { return rank.index() < 64 && (absent >> rank.index() & 1) != 0; }
  // The number of the other ranks.
  std::uint64_t present() const {
    return ranks - static_cast<std::uint64_t>(std::popcount(absent));
  }
  Slices slices() const { return Slices(static_cast<std::uint16_t>(ranks_per_slice)); }
  // Calls never wait for a rank that is behind.
  bool catches_up() const { return CatchesUp(ranks); }
  // A collective may go on without members that are removed or absent (OutlivesMembers()).
  bool may_outlive_members() const {
    const bool defers = sim_mode() == SimMode::kBounded || sim_mode() == SimMode::kAny;
    return defers && (sim_stages() == SimStages::kBoth || sim_stages() == SimStages::kMixed);
  }
  // A contribution may also stand for those of absent ranks.
  bool represents_absent() const { return means != 0 && catches_up(); }
  // 0: there is none.
  std::uint64_t cross_traffic_end_us() const {
    return cross_traffic_at_us > 0 ? cross_traffic_at_us + cross_traffic_for_us : 0;
  }
  // Longer than peers wait: they may give each other up.
  bool cut_is_long() const { return cut_at_us > 0 && 2 * cut_for_us > peer_timeout_us; }
  bool freeze_is_long() const { return freeze_at_us > 0 && 2 * freeze_for_us > peer_timeout_us; }
  bool part_is_long() const { return 2 * part_for_us > peer_timeout_us; }
  bool lane_cut_is_long() const {
    return lane_cut_at_us > 0 && 2 * lane_cut_for_us > peer_timeout_us;
  }
  // The rank that is removed for the path of mtu_rank: of a single one its sender, unless rank 0,
  // which the others depend on, stays in its place.
  std::uint64_t narrow_rank() const;
  // Long datagrams do not pass one direction of one path.
  bool narrows_one_path() const { return mtu_at_us > 0 && mtu_to < ranks; }
  // True if these two ranks are parted at some time.
  bool Parted(Rank a, Rank b) const;

  // Ranks without which the others may continue, one bit for each.
  std::uint64_t removable() const;
  bool IsRemovable(Rank rank) const {
    return rank.index() < 64 && (removable() >> rank.index() & 1) != 0;
  }
  // The others certainly continue: they are the majority, and no other failure ends one of them.
  bool goes_on() const;
  // No rank and no path fails.
  bool is_whole() const { return LastingFailures() + PassingFailures() == 0; }
  // The largest possible number of removals; all ranks, if programs end with errors.
  std::uint64_t removals_max() const;

 private:
  // These ranks, one bit for each, and those of their slices.
  std::uint64_t WithSlices(std::uint64_t removed) const;
  // Sums of the fields of failures: 0 if there is none.
  std::uint64_t LastingFailures() const {
    return stop_at_us + leave_at_us + cancel_at_us + mismatch + give_up_at_us + hang_at_us +
           mtu_at_us;
  }
  std::uint64_t PassingFailures() const {
    return cut_at_us + freeze_at_us + part_for_us + lane_cut_at_us;
  }
};

enum class ScenarioSize : std::uint8_t {
  kSmall,   // at most 8 ranks, buckets of at most 8 KiB
  kMedium,  // at most 16 ranks, buckets of at most 256 KiB
};

// Swarm testing: first the kinds of fault that exist at all in this run, then random weights for
// them. A uniform mix of all faults hides failures that need the absence of one.
// Source: Groce et al., "Swarm Testing", ISSTA 2012.
Scenario MakeScenario(std::uint64_t seed, ScenarioSize size);

// "seed=7 ranks=4 loss_ppm=30000": the seed, and every field that differs from its default.
std::string Print(const Scenario& scenario);
// The inverse. With `size=small` or `size=medium` the scenario is that of its seed, modified by the
// other fields of the line. The message names an unknown key, a value out of range, or
// contradicting fields.
Result<Scenario> ParseScenario(std::string_view line);
// The error names contradicting fields.
Status Validate(const Scenario& scenario);
// One line per field, for help texts.
std::string DescribeScenarioFields();

}  // namespace optireduce

#endif  // FFI_SIM_SCENARIO_H_
