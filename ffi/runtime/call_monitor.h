// The call monitor of a process: keeps the flight record and the totals, and reports eight kinds of
// events to a waiting thread: a slow rank and its recovery, deadlines that are too short, much late
// data, a call that does not end, removed ranks, a call of a peer that this process passes by, and
// devices that wait for others of their process.

#ifndef FFI_RUNTIME_CALL_MONITOR_H_
#define FFI_RUNTIME_CALL_MONITOR_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/detectors/mismatch_detector.h"
#include "ffi/protocol/submission.h"
#include "ffi/runtime/collective_totals.h"
#include "ffi/runtime/communicator_options.h"
#include "ffi/runtime/flight_recorder.h"
#include "ffi/runtime/late_share.h"
#include "ffi/runtime/short_deadline.h"
#include "ffi/runtime/slow_rank.h"

namespace optireduce {

// A call that does not end, or that failed after a long wait for a dead peer. Concurrent calls are
// part of the same stall and are not reported separately.
struct StallEvent {
  CallRecord call;
  std::size_t others = 0;  // other calls that are under way
};

// Ranks that were removed from the session.
struct RemovalEvent {
  std::vector<Rank> ranks;
  std::size_t live = 0;  // remaining ranks
  std::string path;      // one that loses long datagrams, if that is the reason; in words
};

// A call that some devices of this process have started and others have not; see DeviceRendezvous.
struct DevicesEvent {
  std::string collective;
  Sequence sequence;
  std::vector<std::uint32_t> started;  // ranks of the group
  std::vector<std::uint32_t> missing;
  Duration elapsed{};      // time since the start of the first one
  std::size_t others = 0;  // other such calls
};

using MonitorEvent = std::variant<SlowRankEvent, ShortDeadlineEvent, LateShareEvent, StallEvent,
                                  RemovalEvent, LoneCall, DevicesEvent>;

// Thread-safe. Begin() and End() take a lock for a few hundred nanoseconds and never wait.
class CallMonitor {
 public:
  explicit CallMonitor(const CommunicatorOptions& options);

  // Returns the number of the call.
  std::uint64_t Begin(const Submission& submission);
  void End(std::uint64_t number, const Status& status, const CallStats& stats);

  // Sets the ranks with which a lane continues, and the reason (RemovalEvent::path). Reports
  // removals not yet reported by another lane.
  void SetLive(const std::vector<Rank>& live, const std::string& path = "");
  void Tell(MonitorEvent event);
  // The remaining ranks.
  std::vector<Rank> members() const;

  // Oldest first; `elapsed` of open calls is measured up to now.
  std::vector<CallRecord> Records() const;
  // The open ones among them. Takes the lock for less time than Records().
  std::vector<CallRecord> OpenRecords() const;
  // The newest call that has ended, if any.
  std::optional<CallRecord> LastEnded() const;

  // See CollectiveTotals::Values().
  std::vector<std::pair<std::string, CallTotals>> Totals() const;

  // Blocks until an event; returns none after Close(). For one thread only.
  std::optional<MonitorEvent> Wait();
  // Events that were lost because too many others were unread.
  std::uint64_t events_dropped() const;
  // Ends Wait(). May be repeated.
  void Close();

 private:
  // Up to now, of open calls.
  static void SetElapsed(std::vector<CallRecord>& records);
  // Requires the mutex.
  void Push(MonitorEvent event);
  void ReportStall(const CallRecord& call);
  void TellIfUnreachable(const CallRecord& call, const Status& status);
  // Waits until the next call may have stalled, and reports a stall.
  void WaitForStall(std::unique_lock<std::mutex>& lock);

  const Duration stall_timeout_;
  // Least wait of a call that fails because of a dead peer, here or at another rank, from which the
  // failure counts as a stall.
  const Duration unavailable_wait_;

  mutable std::mutex mutex_;  // guards the following members
  std::condition_variable changed_;
  FlightRecorder recorder_;
  CollectiveTotals totals_;
  SlowRankDetector slow_rank_;
  ShortDeadlineDetector short_deadline_;
  LateShareDetector late_share_;
  std::deque<MonitorEvent> events_;
  std::uint64_t events_dropped_ = 0;
  std::vector<Rank> live_;
  bool failing_ = false;  // the stall of a dead peer was reported, and no call has succeeded since
  // the waiting thread sleeps without a time limit: the next call has to wake it
  bool idle_ = false;
  bool closed_ = false;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_CALL_MONITOR_H_
