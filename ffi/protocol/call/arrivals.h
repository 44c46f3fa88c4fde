// The arrival times of a call's contributions, by member. They tell which member the others waited
// for, and for what time.
//
// Contributions, not results: a sum cannot leave before the slowest contribution is in it, so one
// slow member makes the results of all others come late.

#ifndef FFI_PROTOCOL_CALL_ARRIVALS_H_
#define FFI_PROTOCOL_CALL_ARRIVALS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"

namespace optireduce {

class Arrivals {
 public:
  Arrivals(MemberIndex self, std::uint16_t members) : self_(self), came_(members) {}

  // A segment of a contribution came.
  void Record(Instant now, MemberIndex from) {
    std::optional<Came>& came = came_[from.index()];
    if (!came) came = Came{.first = now, .last = now};
    came->last = now;
  }

  // Nothing of the member came.
  bool Absent(MemberIndex member) const { return member != self_ && !came_[member.index()]; }

  struct Latest {
    MemberIndex member;
    Duration behind{};  // the wait of the local program for it, after the data of the others
  };

  // The member that the call waited for at its end; `behind` is 0 if all came before the local
  // program.
  Latest FindLatest(Instant submitted_at, Instant now) const {
    std::vector<Instant> others;  // the latest one is taken out below
    Latest latest{.member = self_};
    Instant at{};
    for (std::size_t m = 0; m < came_.size(); ++m) {
      const MemberIndex member(static_cast<std::uint16_t>(m));
      if (member == self_) continue;
      const std::optional<Came>& came = came_[m];
      const Instant here = came ? TimeOf(*came) : now;
      others.push_back(here);
      if (latest.member != self_ && here <= at) continue;
      latest.member = member;
      at = here;
    }
    // The lower median: half of the members may be slow, and the other half is still the measure.
    const auto middle = others.begin() + static_cast<std::ptrdiff_t>((others.size() - 1) / 2);
    Instant ready = submitted_at;
    if (others.size() > 1) {
      std::ranges::nth_element(others, middle);
      ready = std::max(ready, *middle);
    }
    latest.behind = std::max(at - ready, Duration::zero());
    return latest;
  }

  // The members whose data came last, with its time, latest first; at most `count`.
  std::vector<std::pair<MemberIndex, Instant>> FindLast(std::size_t count) const {
    std::vector<std::pair<MemberIndex, Instant>> last;
    for (std::size_t m = 0; m < came_.size(); ++m) {
      if (came_[m]) last.emplace_back(static_cast<std::uint16_t>(m), TimeOf(*came_[m]));
    }
    const auto kept = last.begin() + static_cast<std::ptrdiff_t>(std::min(count, last.size()));
    // Members of one time stand in their order: a run of a seed repeats itself.
    std::ranges::partial_sort(last, kept, [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    last.erase(kept, last.end());
    return last;
  }

 private:
  struct Came {
    Instant first;
    Instant last;
  };

  // One peer alone cannot tell a slow link from a large bucket: only its beginning counts.
  Instant TimeOf(const Came& came) const { return came_.size() <= 2 ? came.first : came.last; }

  MemberIndex self_;
  std::vector<std::optional<Came>> came_;  // one for each member
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_ARRIVALS_H_
