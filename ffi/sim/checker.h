// The invariants of every run, on any network. Called on every event; remembers the first
// violation, after which the run ends.

#ifndef FFI_SIM_CHECKER_H_
#define FFI_SIM_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/sim/network.h"
#include "ffi/sim/scenario.h"
#include "ffi/sim/workload.h"

namespace optireduce {

// For messages: "1.500000 ms".
std::string Milliseconds(Duration duration);

class Checker {
 public:
  Checker(const Scenario& scenario, const Workload& workload);

  // Empty while everything held.
  const std::string& failure() const { return failure_; }
  void Fail(Instant now, Rank rank, const std::string& what);

  // ---- Actions of the ranks, in their order.

  // A call begins: makes its leaves and fills them. The token is that of the submission.
  Submission Begin(Instant now, Rank rank, SimCall call);
  // The endpoint took it, or refused it.
  void Submitted(Instant now, std::uint64_t token, const Status& status);
  // Some lane has refused its part.
  void PartlyRefused(std::uint64_t token) { records_[token].partly_refused = true; }
  // A lane has done its part of the call `token`.
  void PartDone(Instant now, Rank rank, std::uint16_t lane, std::uint64_t token,
                const CallDone& part);
  void Done(Instant now, Rank rank, const CallDone& done);
  void Stopped(Instant now, Rank rank);
  void Left(Instant now, Rank rank);
  void Cancelled(Instant now, Rank rank);
  // It ends this call, whether or not its endpoint has it.
  void GaveUp(Instant now, Rank rank, SimCall call);

  // Nodes from here on, see setup.h. A node that still listens has received a datagram.
  void Delivered(Instant now, const Arrival& delivery, const Counters& counters);
  // A transmit that the endpoint asked for.
  void Polled(Instant now, Rank node, const Transmit& transmit, std::size_t batch_max);
  // After the node's endpoint was driven.
  void Driven(Instant now, Rank node, const Endpoint& endpoint);

  // ---- The end: no event is pending.
  void FailOpenCalls(Instant now);
  void Finish(Instant now, const Network& network);

  // Longest duration of a call once it waits for the network only and no fault is active.
  Duration LivenessBound() const;
  // Longest duration of a call beyond the delays of its ranks and faults: the reserve of the bound.
  Duration liveness_worst() const { return liveness_worst_; }

 private:
  struct Record {
    Rank rank;
    SimCall call;
    SimCollective collective;
    std::vector<std::vector<std::byte>> leaves;  // with a margin on either side
    Instant submitted_at{};
    bool submitted = false;
    bool partly_refused = false;
    bool done = false;
    Instant done_at = kNever;
    std::optional<std::uint16_t> live;        // members, of one that ended with a result
    bool whole = false;                       // with nothing missing
    std::optional<std::uint16_t> parts_live;  // members of its parts that ended with one
    // By lane: its part was over before: what it gave is part of a later call.
    std::vector<bool> owed;
    std::uint64_t hash = 0;  // of the leaves when the call was done
  };
  struct SeenLane {
    std::uint64_t delivered = 0;
    std::uint64_t sent = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t completed = 0;
    std::uint64_t failed = 0;
    std::vector<Instant> asked;  // by rank: when it was first sent something without an answer
    // By rank: the last datagram of it that was taken for its own, and new. It may have come by a
    // copy, where the first one was lost.
    std::vector<Instant> heard;
    std::vector<Instant> first_heard;  // kNever before
    std::uint64_t heard_count = 0;     // of all of them
    Duration longest_answer{};         // after it was asked, of any of them
  };
  struct Seen {
    std::vector<SeenLane> lanes;
    std::optional<Instant> stopped_at;
    std::optional<Instant> left_at;
    std::optional<Instant> cancelled_at;
    std::optional<Instant> silent_until;  // a peer had not heard it for peer_timeout until then
  };
  SeenLane& SeenBy(Rank node) {
    return seen_[node.index() % scenario_.ranks].lanes[node.index() / scenario_.ranks];
  }

  // Whether `from` may give `rank` up.
  bool Gone(Rank from, Rank rank) const;
  void CheckResult(Instant now, const Record& record, const CallDone& done);
  // A call of a collective that defers late data; its drain shows any loss.
  std::string CheckDeferred(const Record& record, std::span<const std::byte> bucket,
                            const CallDone& done);
  std::string CheckConserved(const Record& record);
  // After failed calls contributions may be lost, and none is there twice.
  std::string CheckNotTwice(const Record& record);
  // An exact call in a wire format: near the sum, and the same bits for all.
  std::string CheckRounded(const Record& record, std::span<const std::byte> bucket,
                           const CallDone& done);
  std::string Describe(const SimCollective& collective, std::size_t element, double total) const;
  // ---- checker_members.cc
  // The remaining sums, and the numbers of members of calls, after removals.
  void CheckRemovals(Instant now);
  void CheckLive(Instant now, std::size_t collective);
  // A removed rank, and the number of members of the collective when it owned an element.
  struct GoneOwner {
    Rank rank;
    std::size_t members = 0;
    std::uint16_t lane = 0;  // that carries the element
  };
  // By element.
  std::vector<std::vector<GoneOwner>> GoneOwnersOf(const SimCollective& collective) const;
  // Those of a call that had so many.
  std::vector<Rank> MembersOf(std::size_t collective, std::size_t members) const;
  // Data of `rank` for a removed owner may have begun in this call: then its place is unknown.
  bool MayBeLost(Rank rank, SimCall call, const std::vector<GoneOwner>& owners) const;
  // Of all calls of a rank that has drained them; `owners` by element.
  void CheckLosses(Instant now, std::size_t collective, Rank rank,
                   const std::vector<std::vector<GoneOwner>>& owners);
  // The same for an element of a removed owner in a wire format.
  void CheckRoundedLoss(Instant now, std::size_t collective, Rank rank, std::size_t element,
                        const std::vector<GoneOwner>& owners);
  void NoteView(Instant now, Rank rank, std::vector<Rank> view);
  // The last sign of life was so long ago that a rank is silent.
  bool IsSilentSince(Instant now, Instant heard) const;
  // It may be removed, and a peer has not heard it for peer_timeout.
  bool WasSilent(Instant now, Rank rank) const;
  // The remaining ranks at the end.
  const std::vector<Rank>& last_view() const { return views_.back(); }
  // The error says that the others continue without this rank, which may be.
  bool SaysRemoved(Rank rank, const Status& status) const;
  // The error is that no majority can be reached.
  bool SaysMinority(const Status& status) const;
  // Longest time for which a call is held until its members are agreed.
  Duration AgreementBound() const;
  // Longest time until all silent ranks are removed.
  Duration SilenceBound() const;
  const std::vector<std::byte>& Reference(SimCall call);
  void CheckTime(Instant now, const Record& record, const CallDone& done);
  // ---- checker_lag.cc
  // A bounded call does not wait for peers that are behind and do not answer.
  void CheckLag(Instant now, const Record& record);
  // `from` does not hear `rank` from then on, for a while or for ever; kNever: nothing is wrong.
  Instant AwayFrom(Rank from, Rank rank) const;
  // When that is over.
  Instant BackAt(Rank from, Rank rank) const;
  void NoteAnswer(SeenLane& seen, Duration gap) const;
  // The time from which on a member that is away since `away` is not waited for: it answers again,
  // or its silence is longer than usual.
  Instant LeftBehindBy(const Record& record, Rank member, Instant away) const;
  // Longest time of the network for the data that a call waits for.
  Duration LagBound() const;
  // Data of calls ahead may not be taken for as many as max_lag.
  bool IsCrowded() const;
  // The time from which on a call waits for the network only; `now` if a rank has to call first.
  Instant WaitsFrom(Instant now, const Record& record) const;
  void CheckError(Instant now, const Record& record, const Status& status);
  // Where a call waits for a rank that answers and does not call.
  void CheckTooLong(Instant now, const Record& record, const Status& status);
  bool MayWaitForEver(const Record& record) const;
  void CheckMismatchError(Instant now, const Record& record, const Status& status);
  void CheckSilence(Instant now, const Record& record, const Status& status);
  // By when a path that loses long datagrams is given up, if there is one.
  Instant PathGivenUpBy() const;
  bool MayGiveUpPath(Instant now) const;
  // The error is of such a path, and names the sizes that pass.
  void CheckBlackHole(Instant now, const Record& record, const Status& status);
  // When `rank` began to wait for an answer of `peer` on the lane, if it has not heard it since.
  Instant AskedAt(Instant now, Rank rank, Rank peer, const SeenLane& lane) const;
  void CheckEfficiency(Instant now, const Network& network);
  bool MarginsIntact(const Record& record) const;
  static std::uint64_t HashOfLeaves(const Record& record);
  // The leaves are unchanged since the end of the call.
  void CheckUntouched(Instant now, const Record& record);
  // Drops the leaves of the oldest calls, where all of them together are too large.
  void ReleaseLeaves(Instant now);
  std::vector<std::byte> Gather(const Record& record) const;
  std::size_t MemoryBound(Rank rank) const;
  // The delay of any event by a driver that wakes late, or that cannot send.
  Duration DriverSlack() const;

  Scenario scenario_;
  const Workload& workload_;
  std::string failure_;
  std::vector<Record> records_;  // by token
  std::size_t leaf_bytes_ = 0;   // that records hold
  std::size_t released_ = 0;     // the leaves of records before this one are dropped
  std::vector<Seen> seen_;       // by rank
  std::vector<std::size_t> memory_bound_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::byte>> references_;
  // By (collective, index): the bits of the first result, where values are rounded.
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::byte>> rounded_;
  // By (collective, rank): the sum of all that the calls have given it.
  std::map<std::pair<std::size_t, std::size_t>, std::vector<double>> totals_;
  // By (collective, index): how many members have called it, or a later one, and the last of them.
  struct Ready {
    std::size_t members = 0;
    Instant at{};
  };
  std::map<std::pair<std::size_t, std::size_t>, Ready> ready_;
  // By (collective, rank): the first index that it has not called.
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> next_index_;
  std::set<std::pair<std::size_t, std::size_t>> given_up_;  // by (collective, index)
  Duration liveness_worst_{};
  std::vector<std::vector<Rank>> views_;  // that some rank has come to, the largest first
};

}  // namespace optireduce

#endif  // FFI_SIM_CHECKER_H_
