// Deadlines that learn, for stages whose late data is deferred into the next call. Such data still
// arrives, so the true time of every datum becomes known: the controller is not blinded by its own
// cut-offs. One instance for each stage of a collective.
//
// The deadline is the time after the opening of a call that at most `late_budget` of the data
// exceeds, over about the last hundred calls, and an eighth more. Not everything that is late may
// move it:
//   * A straggler, a rank whose program is slow in most calls, counts by the time since its own
//     first sign in the call, where nobody waits for ranks that lag. Where they are waited for, it
//     sets the pace of all anyway: a deadline that leaves it out would gain no time, and make all
//     that it sends late.
//   * A single start far beyond the usual counts so too: waiting for a program is not what a
//     deadline is for.
//   * A call far beyond the deadline is held back until some more came within a few dozen: a rank
//     that froze once is no reason to wait longer.
// And a drop below half is believed once the calls that confirm it are no chance. So a change of
// any size is followed within 20 calls, and what happens once is not.
//
// Limits. More than the budget is late while stalls of several times the deadline come in less than
// about one call in ten. Two members cannot tell the latency between them from a program's
// lateness; the option `latency` decides.

#ifndef FFI_PROTOCOL_DEADLINE_DEADLINE_CONTROLLER_H_
#define FFI_PROTOCOL_DEADLINE_DEADLINE_CONTROLLER_H_

#include <array>
#include <cstddef>
#include <vector>

#include "ffi/base/time.h"
#include "ffi/protocol/deadline/latency_histogram.h"

namespace optireduce {

struct DeadlineOptions {
  double late_budget = 0.01;  // share of the data that may be late, above 0 and below 1
  Duration bound{};           // never exceeded; the deadline until calibrated
  // A source that begins later than the others by less than this is never held for a straggler.
  // Chosen: ten times the latency within a data centre, and nothing for a program that computes.
  Duration latency = std::chrono::milliseconds(2);
  bool waits_for_stragglers = false;
};

class DeadlineController {
 public:
  // `sources` is the number of members; a source is a member's index.
  DeadlineController(const DeadlineOptions& options, std::size_t sources);

  // Once for each call, when it opens. Learns from what came since the last one.
  void BeginCall();
  // The first sign of `source` in a call; for the own rank its submit, when its data comes too.
  void Began(std::size_t source, Duration after_opening);
  // Data of `source` came: `share` of what it sends in one call. Also for a call that is long over;
  // both times are those of the data's own call. after_beginning counts from the source's Began.
  void Arrived(std::size_t source, Duration after_opening, Duration after_beginning, double share);

  // Nobody waits for `source`, which is late in most calls; constant between two of BeginCall.
  bool straggles(std::size_t source) const { return sources_[source].straggler; }
  // Counts from the opening of a call; constant between two calls of BeginCall.
  Duration deadline() const;
  // What it would be without its bound; zero until calibrated.
  Duration unbounded() const;
  // True once enough calls brought data.
  bool calibrated() const;

 private:
  // Chosen: odd, and the median follows a change after eight calls.
  static constexpr std::size_t kTypicalCalls = 15;
  // Chosen: with what is seen before and after, a drop is believed within 20 calls.
  static constexpr std::size_t kRecentCalls = 18;

  // The last values; a few odd ones do not change their median.
  class Typical {
   public:
    void Add(Duration value) { values_[count_++ % kTypicalCalls] = value; }
    Duration Median() const;  // zero when empty
    std::size_t count() const { return count_; }

   private:
    std::array<Duration, kTypicalCalls> values_{};
    std::size_t count_ = 0;
  };

  struct Source {
    Typical offsets;              // of its first signs
    Typical transfers;            // the longest after_beginning between two openings
    Duration longest_transfer{};  // since the last opening
    Duration typical_offset{};
    bool straggler = false;
  };

  void LearnFromCall();
  void Remember(const LatencyHistogram& data, Duration asked, std::size_t calls);
  void HoldBack(Duration asked);
  void ForgetOdd();
  void ForgetDrop();
  void FindStragglers();

  DeadlineOptions options_;
  std::vector<Source> sources_;
  std::vector<Duration> offsets_;  // for FindStragglers

  LatencyHistogram call_;    // since the last opening
  LatencyHistogram memory_;  // of all calls before, the older the less
  LatencyHistogram asked_;   // what each of them alone would have asked for, by number of calls
  LatencyHistogram odd_;     // of the calls that are held back
  std::array<Duration, kRecentCalls> recent_{};  // the last ones of asked_
  std::size_t recent_count_ = 0;
  std::size_t calls_ = 0;  // that brought data and were remembered
  std::size_t odd_calls_ = 0;
  std::size_t calls_since_odd_ = 0;  // that were not odd, since the first of odd_
  Duration learned_{};
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DEADLINE_DEADLINE_CONTROLLER_H_
