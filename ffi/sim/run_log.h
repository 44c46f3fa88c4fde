// The record of a run that the checkers read: calls, signs of life, views, and the first violation.

#ifndef FFI_SIM_RUN_LOG_H_
#define FFI_SIM_RUN_LOG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/sim/scenario.h"
#include "ffi/sim/workload.h"

namespace optireduce {

// The duration as messages show it: "1.500000 ms".
std::string Milliseconds(Duration duration);

struct SimCallRecord {
  Rank rank;
  SimCall call;
  SimCollective collective;
  bool drain = false;
  std::vector<std::vector<std::byte>> leaves;  // each has a margin on either side
  std::vector<std::byte> values;  // this rank's, of a call that does not have them in its leaves
  Instant submitted_at{};
  bool submitted = false;
  bool partly_refused = false;
  bool done = false;
  Instant done_at = kNever;
  std::optional<std::uint16_t> live;  // members, of one that ended with a result
  bool whole = false;                 // nothing is missing
  // One for each lane: its part, if that ended with a result. Where ranks skip calls the parts may
  // have different numbers in the session.
  struct Part {
    Sequence number;
    std::uint16_t live = 0;  // members
    bool passed = false;     // it was over before it began: no part of other ranks has its number
  };
  std::vector<std::optional<Part>> parts;
  // One for each lane: its part was over before, and its contribution joins a later call.
  std::vector<bool> owed;
  std::uint64_t hash = 0;  // hash of the leaves when the call was done

  // No deadline ends it: it waits for every rank that answers.
  bool WaitsForAll() const { return WaitsForMembers(collective.spec, drain); }
  // The part of the bucket that the call gives the rank.
  ElementRange Result() const { return collective.ResultOf(collective.MemberOf(rank)); }
  // "call 3 of 'gradients'".
  std::string Name() const;
};

// One lane of a rank.
struct LaneRecord {
  std::uint64_t delivered = 0;
  std::uint64_t sent = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::vector<Instant> asked;  // the first send to each rank that has no answer
  // One for each rank: the last datagram of it that was taken for its own, and new. It may have
  // come by a copy, where the first one was lost.
  std::vector<Instant> heard;
  std::vector<Instant> first_heard;  // kNever before
  std::uint64_t heard_count = 0;     // datagrams of all ranks
  Duration longest_answer{};         // the slowest answer of any rank
};

// The error of a call that its rank has interrupted.
inline constexpr std::string_view kInterrupted = "it was interrupted";

struct RankRecord {
  std::vector<LaneRecord> lanes;
  std::optional<Instant> stopped_at;
  std::optional<Instant> left_at;
  std::optional<Instant> cancelled_at;
  std::optional<Instant> silent_until;  // a peer had not heard it for peer_timeout until then
};

class RunLog {
 public:
  RunLog(const Scenario& scenario, const Workload& workload);

  // Remembers the first violation.
  void Fail(Instant now, Rank rank, const std::string& what);
  // Notes that a rank has made a call, and with it those that it has skipped.
  void RecordCall(Instant now, const SimCallRecord& record);
  // How many members have called it, or a later one, and the time of the last of them.
  struct Ready {
    std::size_t members = 0;
    Instant at{};
  };
  Ready ReadyOf(SimCall call) const;
  // The first index of the collective that the rank has not called.
  std::size_t NextIndex(std::size_t collective, Rank rank) const;
  bool WasGivenUp(SimCall call) const { return given_up.contains({call.collective, call.index}); }

  LaneRecord& LaneAt(Rank node) {
    return ranks[node.index() % scenario.ranks].lanes[node.index() / scenario.ranks];
  }
  bool HasStopped(Rank rank) const { return ranks[rank.index()].stopped_at.has_value(); }
  // The last sign of life was so long ago that a rank is silent.
  bool IsSilentSince(Instant now, Instant heard) const;
  // The remaining ranks at the end.
  const std::vector<Rank>& last_view() const { return views.back(); }

  const Scenario& scenario;
  const Workload& workload;
  std::string failure;               // empty while everything held
  std::vector<SimCallRecord> calls;  // one for each token
  // The leaves of calls with lower indices are dropped.
  std::size_t kept_from = 0;
  std::vector<RankRecord> ranks;         // one for each rank
  std::vector<std::vector<Rank>> views;  // views that some rank has come to, the largest first
  std::set<std::pair<std::size_t, std::size_t>> given_up;  // pairs (collective, index)

 private:
  // Key: (collective, index).
  std::map<std::pair<std::size_t, std::size_t>, Ready> ready_;
  // Key: (collective, rank).
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> next_index_;
};

}  // namespace optireduce

#endif  // FFI_SIM_RUN_LOG_H_
