// Detects a slow rank, and reports it once. Its input is every call that has ended; it knows no
// clock.
//
// A call waited for a rank when most of the call was spent after the data of all others was there.
// One such call is no evidence: programs compile, and systems pause. A rank is slow when most of
// the last calls of one collective waited for it, and these waits are a relevant share of the time
// between the calls. It has recovered when its data arrives and hardly any call waits for it. After
// that it is named again only after a pause, which doubles each time: a rank at the edge is not
// reported repeatedly.

#ifndef FFI_RUNTIME_SLOW_RANK_H_
#define FFI_RUNTIME_SLOW_RANK_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Calls of one collective in the window.
// Source: the slow rank has to be named within 10 calls.
inline constexpr std::size_t kSlowRankWindow = 10;
// Chosen: leaves two of the 10 calls to chance. Among 3 equal ranks one is last in 8 of 10 calls
// once in 100 windows, and each time by much, only where cores are short: with 4 ranks that all
// compute on 2 cores, 7 named one in 800 calls, 8 none.
inline constexpr std::size_t kSlowRankCalls = 8;
// Chosen: far from kSlowRankCalls, so that chance alone does not cross both.
inline constexpr std::size_t kRecoveredCalls = 2;
// From a recovery until the rank may be named again, the first time; then twice as long each time.
// Chosen: short enough for a trouble that comes back to be told, and eleven lines in 20 minutes at
// most.
inline constexpr Duration kSlowRankPause = std::chrono::minutes(1);
// Chosen: slowness after so long a pause is a new event.
inline constexpr Duration kSlowRankPauseMax = std::chrono::hours(1);

// A change of a rank.
struct SlowRankNews {
  Rank rank;
  bool recovered = false;
  std::string collective;
  // Of the last `calls` of the collective `waited` calls waited for the rank; in `absent` of these
  // none of its data came in time.
  std::size_t calls = 0;
  std::size_t waited = 0;
  std::size_t absent = 0;
  // Medians over the calls that waited for it: of the wait, and of the duration of the call.
  Duration behind{};
  Duration elapsed{};
};

class SlowRankWatch {
 public:
  // A call that has ended at `end` with a result.
  std::optional<SlowRankNews> Add(std::string_view collective, const CallStats& stats, Instant end);
  // The rank was removed: it is neither slow nor has it recovered.
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
  static SlowRankNews Judge(const History& history, Rank rank);
  static bool Matters(const History& history, Rank rank);
  std::optional<SlowRankNews> FindRecovered(std::string_view collective, const History& history,
                                            Instant now);
  std::optional<SlowRankNews> NameIfSlow(std::string_view collective, const History& history,
                                         Rank rank, Instant now);

  std::map<std::string, History, std::less<>> histories_;  // by collective
  std::map<Rank, std::string> slow_;  // reported, and the collective that shows it
  // Ranks that have recovered: when they may be named again, and the pause that this is.
  struct Rest {
    Instant until{};
    Duration pause{};
  };
  std::map<Rank, Rest> rests_;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_SLOW_RANK_H_
