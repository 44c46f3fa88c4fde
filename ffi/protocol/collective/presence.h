// The ranks that take part in calls at present, over all collectives that continue without ranks
// that are late. A rank that has missed a call is absent from the next ones, whatever their
// collective, until it makes a call in time.
//
// Calls of this rank stand here for their places among all that its program has made.

#ifndef FFI_PROTOCOL_COLLECTIVE_PRESENCE_H_
#define FFI_PROTOCOL_COLLECTIVE_PRESENCE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "ffi/base/ids.h"

namespace optireduce {

class Presence {
 public:
  using Place = std::uint64_t;

  // ---- The program of this rank.

  // It makes a call.
  Place Call() { return ++newest_; }
  Place newest() const { return newest_; }
  // It takes part in a call in time, or has missed one that others have made.
  void RecordSelf(bool takes_part) { self_absent_ = !takes_part; }
  bool self_absent() const { return self_absent_; }

  // ---- The other ranks.

  // The program of the rank has made the call.
  void RecordCall(Rank rank, Place call) { ranks_[rank].program.Record(call); }
  // It has made a call that was not known, which ends its wait.
  void EndWait(Rank rank) {
    ranks_[rank].drains = false;
    ranks_[rank].waits_after.reset();
  }
  // It waits until others begin a call after that one, which it skips. Until then it makes none.
  void RecordWait(Rank rank, CallId skipped) {
    ranks_[rank].drains = false;
    ranks_[rank].waits_after = skipped;
  }
  // This rank is about to make a call of the collective: the rank waits for it, unless it has gone
  // on, and waits elsewhere or not at all.
  void RecordReturn(Rank rank, CollectiveId collective) {
    std::optional<CallId>& skipped = ranks_[rank].waits_after;
    if (!skipped || skipped->collective != collective) return;
    skipped.reset();
    RecordCall(rank, newest_ + 1);
  }
  // The call has ended, and nothing of the rank's program has come.
  void RecordMissed(Rank rank, Place call) { ranks_[rank].program.RecordMissed(call); }
  // The process of the rank has sent all of its sums of the call, or not by its end.
  void RecordSums(Rank rank, Place call) { ranks_[rank].process.Record(call); }
  void RecordMissedSums(Rank rank, Place call) { ranks_[rank].process.RecordMissed(call); }
  // The program of the rank waits in a drain, until that begins.
  void RecordDrain(Rank rank) {
    ranks_[rank].drains = true;
    ranks_[rank].waits_after.reset();
  }
  void EndDrains() {
    for (auto& [rank, member] : ranks_) member.drains = false;
  }

  // The program of the rank takes no part in calls. One that was never seen may still start.
  bool Absent(Rank rank) const {
    const Member member = Find(rank);
    return member.waits_after || member.program.absent();
  }
  // Its process sums its shards all the same.
  bool Serves(Rank rank) const { return !Find(rank).process.absent(); }
  bool Drains(Rank rank) const { return Find(rank).drains; }
  std::optional<CallId> WaitsAfter(Rank rank) const { return Find(rank).waits_after; }

 private:
  struct Signs {
    std::optional<Place> newest;  // the newest call with a sign
    Place missed = 0;             // the newest without

    void Record(Place call) { newest = std::max(newest.value_or(call), call); }
    void RecordMissed(Place call) { missed = std::max(missed, call); }
    bool absent() const { return newest && *newest < missed; }
  };
  struct Member {
    Signs program;
    Signs process;
    bool drains = false;
    std::optional<CallId> waits_after;
  };

  Member Find(Rank rank) const {
    const auto at = ranks_.find(rank);
    return at == ranks_.end() ? Member() : at->second;
  }

  Place newest_ = 0;
  bool self_absent_ = false;
  std::map<Rank, Member> ranks_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_PRESENCE_H_
