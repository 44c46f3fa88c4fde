// Detects a slow rank, and reports it once. Its input is every call that has ended; it reads no
// clock.
//
// A call waited for a rank if most of the call passed after the data of all others had arrived. One
// such call is no evidence: programs compile, and systems pause. A rank is slow if most of the last
// calls of one collective waited for it, and these waits are a relevant share of the time between
// the calls. It has recovered once its data arrives and hardly any call has waited for it for some
// time, however many calls that is. After a
// recovery it is reported again only after a pause, which doubles each time: a rank at the
// threshold is not reported repeatedly.

#ifndef FFI_RUNTIME_SLOW_RANK_H_
#define FFI_RUNTIME_SLOW_RANK_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"
#include "ffi/runtime/by_collective.h"

namespace optireduce {

// Calls of one collective in the window.
// Source: a slow rank has to be reported within 10 calls.
inline constexpr std::size_t kSlowRankWindow = 10;
// Chosen: leaves two of the 10 calls to chance. Among 3 equal ranks the same one is last in 8 of 10
// calls in one of 100 windows, and by a large margin each time only if cores are short: with 4
// ranks that all compute on 2 cores, a threshold of 7 reported one rank in 800 calls, and 8 none.
inline constexpr std::size_t kSlowRankCalls = 8;
// Chosen: far from kSlowRankCalls, so that chance alone does not cross both.
inline constexpr std::size_t kRecoveredCalls = 2;
// Time without such waits before a recovery. Chosen: a rank that is slow in every other second has
// not recovered; a user who mends something sees it at once.
inline constexpr Duration kRecoveredAfter = std::chrono::seconds(10);
// First pause between a recovery and the next report; it doubles each time.
// Chosen: short enough to report a recurring problem, and limits 20 minutes to eleven reports.
inline constexpr Duration kSlowRankPause = std::chrono::minutes(1);
// Chosen: slowness after so long a pause is a new event.
inline constexpr Duration kSlowRankPauseMax = std::chrono::hours(1);

// A change of state of a rank.
struct SlowRankEvent {
  Rank rank;
  bool recovered = false;
  std::string collective;
  // `waited` of the last `calls` calls of the collective waited for the rank; in `absent` of these
  // none of its data arrived in time.
  std::size_t calls = 0;
  std::size_t waited = 0;
  std::size_t absent = 0;
  // Medians over the calls that waited for the rank: of the wait, and of the duration of the call.
  Duration behind{};
  Duration elapsed{};
};

class SlowRankDetector {
 public:
  // Adds a call that ended with a result at `end`.
  std::optional<SlowRankEvent> Add(std::string_view collective, const CallStats& stats,
                                   Instant end);
  // The rank was removed: it is neither slow nor recovered.
  void Forget(Rank rank);

 private:
  struct Call {
    std::optional<Rank> waited_for;
    std::vector<Rank> absent;
    Duration behind{};
    Duration elapsed{};
    Instant end;
  };
  struct History {
    std::array<Call, kSlowRankWindow> calls;  // a ring
    std::size_t added = 0;
    std::size_t size() const { return added < kSlowRankWindow ? added : kSlowRankWindow; }
  };

  static bool Absent(const Call& call, Rank rank);
  static bool Waited(const Call& call, Rank rank) {
    return call.waited_for == rank || Absent(call, rank);
  }
  static SlowRankEvent Summarize(const History& history, Rank rank);
  static bool IsSignificant(const History& history, Rank rank);
  std::optional<SlowRankEvent> FindRecovered(std::string_view collective, const History& history,
                                             Instant now);
  std::optional<SlowRankEvent> NameIfSlow(std::string_view collective, const History& history,
                                          Rank rank, Instant now);

  ByCollective<History> histories_;
  // A reported rank.
  struct Slow {
    std::string shown_by;  // the collective that shows its state
    Instant waited_at{};   // more than kRecoveredCalls of the window waited for it at that time
  };
  std::map<Rank, Slow> slow_;
  // Ranks that have recovered: the earliest time of the next report, and the current pause.
  struct Backoff {
    Instant until{};
    Duration pause{};
  };
  std::map<Rank, Backoff> backoffs_;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_SLOW_RANK_H_
