// The pending events, in an order that is equal in every replay.

#ifndef FFI_SIM_EVENT_QUEUE_H_
#define FFI_SIM_EVENT_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/base/time.h"

namespace optireduce {

// Events by (time, sequence): events at equal times come in the order in which they were pushed. No
// order depends on an address or a hash table, so a seed gives the same run everywhere.
template <typename Event>
class EventQueue {
 public:
  void Push(Instant at, Event event) {
    heap_.push_back(Entry{at, pushed_++, std::move(event)});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }

  // Time of the next event; kNever if there is none.
  Instant next() const { return heap_.empty() ? kNever : heap_.front().at; }
  std::size_t size() const { return heap_.size(); }

  Event Pop() {
    OR_CHECK(!heap_.empty());
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    Event event = std::move(heap_.back().event);
    heap_.pop_back();
    return event;
  }

 private:
  struct Entry {
    Instant at;
    std::uint64_t sequence;
    Event event;
  };
  static bool Later(const Entry& a, const Entry& b) {
    return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
  }

  std::vector<Entry> heap_;
  std::uint64_t pushed_ = 0;
};

}  // namespace optireduce

#endif  // FFI_SIM_EVENT_QUEUE_H_
