// Learned deadlines, for stages whose late data is deferred to a later call. Deferred data still
// arrives, so the true time of all data becomes known: the controller's own cut-offs do not bias
// its measurements. One instance for each stage of a collective.
//
// Two times bound the deadline: those after the opening of a call that 1 % of the data exceeds, and
// `late_budget` of it, over about the last hundred calls. Between them it is the one with the most
// progress per second (BestDeadline), plus an eighth. Three kinds of late data must not move it:
//   * A straggler, a rank whose program is slow in most calls, counts by the time since its own
//     call, if calls do not wait for lagging ranks and those without it bring more data per second.
//     If they wait, the straggler sets the pace of all ranks anyway: a deadline without it would
//     gain no time, and make its data late.
//   * A single start far beyond the usual is treated the same: a deadline does not serve to wait
//     for a program.
//   * A call far beyond the deadline is held back until some more follow within a few dozen: a rank
//     that froze once is no reason to wait longer.
// A drop below half is accepted once the calls that confirm it are no coincidence. So a change of
// any size is followed within 20 calls, and a single event is not.
//
// Limits. More than the budget is late while stalls of several times the deadline occur in fewer
// than about one call in ten. Two members cannot distinguish the latency between them from a
// program's lateness; the option `latency` decides.

#ifndef FFI_PROTOCOL_DEADLINE_DEADLINE_CONTROLLER_H_
#define FFI_PROTOCOL_DEADLINE_DEADLINE_CONTROLLER_H_

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "ffi/base/time.h"
#include "ffi/protocol/deadline/latency_histogram.h"

namespace optireduce {

struct DeadlineOptions {
  double late_budget = 0.01;  // largest share of the data that may be late, above 0 and below 1
  Duration bound{};           // never exceeded; the deadline until calibrated
  // A source that begins later than the others by less than this is never considered a straggler.
  // Chosen: ten times the latency within a data centre, and negligible for a program that computes.
  Duration latency = std::chrono::milliseconds(2);
  bool waits_for_stragglers = false;
};

class DeadlineController {
 public:
  // `sources` is the number of members; a source is a member's index.
  DeadlineController(const DeadlineOptions& options, std::size_t sources);

  // Takes over what the controller of an earlier session has learned, unless this one is
  // calibrated; the sources begin anew.
  void ContinueFrom(const DeadlineController& earlier);
  // Called once per call, when it opens. Learns from the data since the previous opening.
  void BeginCall(Instant now);
  // The program of `source` called, or its result began; once for each call, also for one that the
  // program came too late for. A source that has never begun brings no data: of a bucket with fewer
  // elements than members, only some own a result.
  void Began(std::size_t source, Duration after_opening);
  // Data of `source` arrived: `share` of its data in one call, possibly a call that ended long ago.
  // Both times are relative to the data's own call; after_beginning counts from the source's Began.
  void Arrived(std::size_t source, Duration after_opening, Duration after_beginning, double share);

  // Calls do not wait for `source`, which is late in most of them; constant between two BeginCall.
  bool straggles(std::size_t source) const { return sources_[source].straggler; }
  // Counts from the opening of a call; constant between two BeginCall.
  Duration deadline() const;
  // The deadline without its bound; zero until calibrated.
  Duration unbounded() const;
  // True once enough calls have brought data.
  bool calibrated() const;

 private:
  // Chosen: odd, and the median follows a change after eight calls.
  static constexpr std::size_t kTypicalCalls = 15;
  // Chosen: with the calls before and after, a drop is accepted within 20 calls.
  static constexpr std::size_t kRecentCalls = 18;

  // The last values; a few odd ones do not change their median.
  class Typical {
   public:
    void Add(Duration value) { values_[count_++ % kTypicalCalls] = value; }
    // The value that about that share of them exceeds; zero if empty.
    Duration ExceededIn(double share) const;
    Duration Median() const { return ExceededIn(0.5); }
    Duration Mean() const;  // zero if empty
    std::size_t count() const { return count_; }

   private:
    std::array<Duration, kTypicalCalls> values_{};
    std::size_t count_ = 0;
  };

  struct Source {
    Typical offsets;              // beginnings of its data in the last calls
    Typical transfers;            // the longest after_beginning between two openings
    Duration longest_transfer{};  // the longest since the last opening
    Duration typical_offset{};
    bool straggler = false;
  };

  void LearnFromCall();
  // `needed`: by the call since the last opening.
  void RecordPeriod(Instant now, Duration needed);
  Duration Choose() const;
  // The share of the data that is never waited for.
  double NegligibleShare() const;
  void Remember(const LatencyHistogram& data, Duration asked, std::size_t calls);
  void HoldBack(Duration asked);
  void ForgetOdd();
  void ForgetDrop();
  void FindStragglers();
  Duration TypicalTransfer();
  bool GainsWithout(Duration offset, std::size_t others, Duration transfer) const;

  DeadlineOptions options_;
  std::vector<Source> sources_;
  std::vector<Duration> scratch_;  // scratch memory of FindStragglers: some value of each source

  LatencyHistogram call_;    // data since the last opening
  LatencyHistogram memory_;  // data of all earlier calls, older ones weighted less
  LatencyHistogram asked_;   // the demand of each single call, weighted by number of calls
  LatencyHistogram odd_;     // data of the calls held back
  std::array<Duration, kRecentCalls> recent_{};  // the last values of asked_
  std::size_t recent_count_ = 0;
  std::size_t calls_ = 0;  // remembered calls that brought data
  std::size_t odd_calls_ = 0;
  std::size_t calls_since_odd_ = 0;   // calls that were not odd, since the first of odd_
  std::optional<Instant> opened_at_;  // the newest call
  Typical computations_;              // the times from call to call, without the waits for data
  Typical transfers_;                 // the longest of each call
  Duration learned_{};                // the time that the negligible share exceeds
  Duration chosen_{};                 // the deadline, at most the learned time
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DEADLINE_DEADLINE_CONTROLLER_H_
