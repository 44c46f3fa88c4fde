// The calls of one collective between two ranks, in one stage, whose data may still be under way.
//
// A sender begins no call while one that is more than max_lag calls older is not delivered, and
// none that is more than max_lag calls older than the newest it has begun. So a receiver that
// remembers the newest max_lag + 1 calls it has heard of knows every datagram it can still get:
// data of an older call is a repetition. Hence memory is bounded on both sides, and no data is
// added twice.

#ifndef FFI_PROTOCOL_COLLECTIVE_CALL_WINDOW_H_
#define FFI_PROTOCOL_COLLECTIVE_CALL_WINDOW_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/protocol/bucket/receipt.h"

namespace optireduce {

// The sender's side.
class SendWindow {
 public:
  explicit SendWindow(std::uint32_t max_lag) : max_lag_(max_lag) {}

  // `call` has begun, or may.
  bool MayBegin(Sequence call) const {
    if (Begun(call) || begun_.size() <= max_lag_) return true;
    return call > begun_.front().sequence && begun_.front().delivered;
  }
  // Needs MayBegin(call).
  void Begin(Sequence call);
  bool Begun(Sequence call) const { return Find(call) != begun_.end(); }
  void Deliver(Sequence call);
  void DeliverAll() {
    for (Entry& entry : begun_) entry.delivered = true;
  }

  // Everything that was begun is delivered.
  bool all_delivered() const { return std::ranges::all_of(begun_, &Entry::delivered); }
  // Some call that is not delivered is `max_lag` calls older than `call`, or more. Calls that are
  // newer than it have no part in this: some begin before their time, opened by peers.
  bool Lags(Sequence call) const;

 private:
  struct Entry {
    Sequence sequence;
    bool delivered = false;
  };
  std::vector<Entry>::const_iterator Find(Sequence call) const {
    return std::ranges::find(begun_, call, &Entry::sequence);
  }

  std::uint32_t max_lag_;
  std::vector<Entry> begun_;  // the newest max_lag + 1, ascending
};

// The receiver's side: the segments that have come of calls that are over here.
class CallHistory {
 public:
  explicit CallHistory(std::uint32_t max_lag) : max_lag_(max_lag) {}

  // A segment of a call that is over; `within` counts from the first of the `segments` that the
  // source sends in a call.
  Receipt Take(Sequence call, std::size_t within, std::size_t segments);
  // A call is over, of which the source has sent something.
  void Remember(Sequence call, Bitmap received);

 private:
  struct Record {
    Sequence sequence;
    Bitmap received;
  };
  // True if nothing new of the call can come.
  bool Stale(Sequence call) const { return floor_ && call <= *floor_; }
  void Insert(Sequence call, Bitmap received);
  std::vector<Record>::iterator Find(Sequence call) {
    return std::ranges::find(records_, call, &Record::sequence);
  }

  std::uint32_t max_lag_;
  std::vector<Record> records_;    // the newest max_lag + 1, ascending
  std::optional<Sequence> floor_;  // nothing new can come up to this call
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_CALL_WINDOW_H_
