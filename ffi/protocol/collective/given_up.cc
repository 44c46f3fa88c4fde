#include "ffi/protocol/collective/given_up.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace optireduce {
namespace {

// Chosen: intervals are apart only where calls between them have ended well, and a rank is no more
// than `max_lag` of those behind.
constexpr std::size_t kIntervalsMax = 32;

}  // namespace

GivenUpCalls::Interval GivenUpCalls::Add(Interval added, Status why) {
  std::erase_if(intervals_, [&added](const Interval& each) {
    const bool before = std::uint64_t{each.last.value()} + 1 < added.first.value();
    const bool behind = std::uint64_t{added.last.value()} + 1 < each.first.value();
    if (before || behind || each.disagreed != added.disagreed) return false;
    added.first = std::min(added.first, each.first);
    added.last = std::max(added.last, each.last);
    return true;
  });
  intervals_.insert(std::ranges::upper_bound(intervals_, added.first, {}, &Interval::first), added);
  why_ = std::move(why);
  if (intervals_.size() > kIntervalsMax) {
    // Calls between the two oldest are long over everywhere.
    intervals_[1].first = intervals_[0].first;
    intervals_.erase(intervals_.begin());
  }
  return *Find(added.last);
}

const GivenUpCalls::Interval* GivenUpCalls::Find(Sequence call) const {
  const auto at = std::ranges::find_if(
      intervals_, [call](const Interval& each) { return each.Contains(call); });
  return at == intervals_.end() ? nullptr : &*at;
}

}  // namespace optireduce
