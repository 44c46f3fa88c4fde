// The number of a drain, which is one on all ranks, although ranks that have skipped different
// numbers of calls count differently. A collective and its successors have one of these.
//
// Each rank that waits in a drain tells the least number that it can take, raises it to the highest
// that it hears, and begins once all have told the same one. So at most one number is begun, and a
// rank that hears of a begun drain begins it.

#ifndef FFI_PROTOCOL_COLLECTIVE_DRAIN_NUMBER_H_
#define FFI_PROTOCOL_COLLECTIVE_DRAIN_NUMBER_H_

#include <algorithm>
#include <map>
#include <optional>

#include "ffi/base/ids.h"

namespace optireduce {

class DrainNumber {
 public:
  // ---- This rank.

  // It tells the others the least number that it can take.
  void Tell(Sequence least) { told_ = least; }
  // The number that it has told, until its drain begins.
  std::optional<Sequence> told() const { return told_; }
  // Its drain begins, or is over before it begins.
  void Begin(Sequence number) {
    last_ = number;
    told_.reset();
    waiting_.clear();
    begun_.reset();
    given_up_.reset();
  }

  // ---- The others.

  // A member waits in a drain, whose number may not be below `least`.
  void RecordWaiting(Rank member, Sequence least) {
    if (last_ && least <= *last_) return;
    Sequence& known = waiting_.try_emplace(member, least).first->second;
    known = std::max(known, least);
  }
  // A member has made a call.
  void RecordCalled(Rank member, Sequence call) {
    const auto drain = waiting_.find(member);
    if (drain != waiting_.end() && call > drain->second) waiting_.erase(drain);
  }
  bool Waits(Rank member) const { return waiting_.contains(member); }
  // The least number that a member which waits in a drain has told.
  std::optional<Sequence> Least(Rank member) const {
    const auto at = waiting_.find(member);
    return at == waiting_.end() ? std::nullopt : std::optional(at->second);
  }
  // The member makes no call of that number before its drain.
  bool DrainsBefore(Rank member, Sequence call) const {
    const std::optional<Sequence> least = Least(member);
    return least && *least <= call;
  }
  // A member has begun the drain, after all had told its number.
  void RecordBegun(Sequence drain) {
    if (IsNews(drain)) begun_ = drain;
  }
  std::optional<Sequence> begun() const { return begun_; }
  // A member has given up the drain that the others wait in, or come to next.
  void RecordGivenUp(CallId drain) {
    if (IsNews(drain.sequence)) given_up_ = drain;
  }
  std::optional<CallId> given_up() const { return given_up_; }
  // A drain was given up in a collective that has turned out to be a successor.
  void Join(const DrainNumber& successor) {
    if (successor.given_up_) RecordGivenUp(*successor.given_up_);
  }

 private:
  bool IsNews(Sequence drain) const { return !last_ || drain > *last_; }

  std::optional<Sequence> last_;  // the newest drain that this rank has begun
  std::optional<Sequence> told_;
  std::map<Rank, Sequence> waiting_;
  std::optional<Sequence> begun_;
  std::optional<CallId> given_up_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_DRAIN_NUMBER_H_
