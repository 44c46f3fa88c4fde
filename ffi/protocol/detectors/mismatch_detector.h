// Finds calls that can never be completed: ranks that are in different calls, or in the same one
// with other facts, and ranks that have ended a call with an error or never make it.
//
// While a call waits, the rank reports that to its peers. From their reports, announcements and
// data each rank finds a disagreement for itself. The detector names the calls that have to end,
// and the error of each. It ends none.

#ifndef FFI_PROTOCOL_DETECTORS_MISMATCH_DETECTOR_H_
#define FFI_PROTOCOL_DETECTORS_MISMATCH_DETECTOR_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/collective/given_up.h"
#include "ffi/protocol/session/lane_membership.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/session/verdict.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

// Chosen: waiting for longer than this is worth a report to the peers.
inline constexpr Duration kReportInterval = std::chrono::milliseconds(500);
// Chosen: a report older than four intervals is no evidence about the peer's present call.
inline constexpr Duration kReportLifetime = 4 * kReportInterval;

// A call in which a peer waits, and which this rank has passed by: its program has made later calls
// of another collective than the peer.
struct LoneCall {
  Rank rank;              // the peer
  std::string call;       // the call's name in errors
  std::string elsewhere;  // this rank's call
  Duration waited{};
  Duration limit{};  // the wait after which the call fails
};

class MismatchDetector {
 public:
  // Both must outlive this.
  MismatchDetector(SessionState& session, const LaneMembership& membership)
      : options_(session.options),
        peers_(session.peers),
        calls_(session.calls),
        directory_(session.directory),
        membership_(membership) {}

  // ---- Ranks in different calls.

  // Reports to the members that this rank waits in the call, once it has for kReportInterval.
  void Report(Instant now, const Exchange& exchange);
  // The report of a peer. Gives up the call for this rank, and tells the peer, where this rank has
  // passed it by for long.
  void HandleReport(Instant now, Rank from, CallId call);
  // A member waits in a call that this rank has not made, and has for `mismatch_timeout`. The error
  // of `exchange`, which is waiting; ok if there is none.
  Status FindCrossed(Instant now, const Exchange& exchange);
  // A member makes the call of this name and number with other facts. The error, or ok.
  Status FindMismatched(const Exchange& exchange);
  // The calls of this name and number for which FindMismatched() has an error.
  std::vector<Verdict> FindMismatched(const std::string& name, Sequence sequence);
  // The program's calls of a collective that is in conflict with another one.
  std::vector<Verdict> FindConflicting(const Collective& collective) const;
  // The next call of a peer that this rank has passed by for `mismatch_timeout`; each once.
  std::optional<LoneCall> PollLone();
  // A call that drops late data has ended, and nothing came of a live peer, which has announced
  // another collective. The error, or ok.
  Status FindCrossedAfterEnd(Instant now, const Exchange& exchange) const;

  // ---- Calls that are given up.

  // Reports to the members that this rank has ended the call with an error, or never makes it.
  void ReportGivenUp(Collective& collective, Sequence sequence, const Status& why, bool disagreed);
  // Such a report, of the calls that the header names. Returns the calls that it ends here.
  std::vector<Verdict> HandleGivenUp(Instant now, const Header& header, Collective& collective,
                                     const std::string& why);
  // The error of a call that a member has already ended with one; ok where none has.
  Status WhyGivenUp(const Collective& collective, Sequence sequence) const;

 private:
  // `from` has ended the call, but is removed, or may be: the members are about to agree.
  bool MayGoOnWithout(const CollectiveSpec& spec, Rank from, bool disagreed) const;
  // The peer of the report is in a call that this rank's program has not made.
  bool IsElsewhere(Instant now, const Exchange& exchange, const Peer::Waiting& report) const;
  // The peer may wait for this rank in vain in the call of the report.
  void CheckLone(Instant now, Peer& from, Peer::Waiting& report);
  // This rank's call of a collective of which the peer has not made so late a call; `last` is the
  // previous finding.
  std::optional<CallId> FindBeyond(Rank peer, std::optional<CallId> last) const;
  Status Disagreement(const Exchange& exchange, Rank peer, const CollectiveSpec& theirs,
                      Sequence their_sequence) const;
  // This rank has already ended a call on account of this one.
  bool DisagreementKnown(CallId call) const;
  void RecordDisagreement(CallId theirs);
  bool HasSilentMember(Instant now, const Collective& collective) const;
  // Records all calls that the other members wait in.
  void RecordDisagreements(const Collective& ours);
  // The error of a call that cannot be completed since `rank` has ended it, or another, with one.
  Status FailureOf(Rank rank, bool disagreed, const Status& theirs, const std::string& ours) const;
  static void QueueGivenUp(Peer& to, CallId call, const GivenUpCalls::Interval& calls);

  // The end of an error about ranks that disagree. Every rank appends it, so it is not sent.
  static constexpr std::string_view kAdvice =
      ". Every rank must make the same calls, with the same names, shapes, dtypes and modes, the "
      "same number of times. A call without name= is known by its file and line: if the ranks run "
      "different source files, give it a name=";

  const EndpointOptions& options_;
  PeerTable& peers_;
  const CallTable& calls_;
  const Directory& directory_;
  const LaneMembership& membership_;
  // Calls of peers with which this rank disagreed, so that it has ended one of its own; the newest.
  std::deque<CallId> disagreed_;
  std::deque<LoneCall> lone_;  // calls that Poll has not returned yet
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DETECTORS_MISMATCH_DETECTOR_H_
