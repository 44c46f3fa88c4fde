// The position of each member among the calls of a collective that drops late data. No rank waits
// there for one that is behind, and a call that all others are past ends without them.

#ifndef FFI_PROTOCOL_COLLECTIVE_ATTENDANCE_H_
#define FFI_PROTOCOL_COLLECTIVE_ATTENDANCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ffi/base/ids.h"

namespace optireduce {

class Attendance {
 public:
  explicit Attendance(std::size_t members) : members_(members) {}

  // Something of `from` has come, of `call`: in any order. True if it is past more calls than was
  // known.
  bool Record(MemberIndex from, Sequence call) {
    Member& member = members_[from.index()];
    member.calls_without = 0;
    if (call == member.newest || (member.before && call <= *member.before)) return false;
    if (member.newest) member.before = std::min(*member.newest, call);
    member.newest = std::max(member.newest.value_or(call), call);
    return true;
  }
  // `from` has said that it sends nothing more of `call`. True as above.
  bool RecordPast(MemberIndex from, Sequence call) {
    Member& member = members_[from.index()];
    const Sequence next(call.value() + 1);
    if (member.before && next <= *member.before) return false;
    member.before = next;
    member.newest = std::max(member.newest.value_or(next), next);
    return true;
  }
  // `from` has sent data of a call that is over here. True the first time in each call.
  bool AsksInVain(MemberIndex from, Sequence call) {
    std::optional<Sequence>& asked = members_[from.index()].asked_in_vain;
    if (asked && call <= *asked) return false;
    asked = call;
    return true;
  }
  // A call of this rank ended; `heard(member)`: something of it came in the call.
  template <typename Heard>
  void EndCall(Heard heard) {
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const MemberIndex member(static_cast<std::uint16_t>(m));
      if (!heard(member) && members_[m].newest) ++members_[m].calls_without;
    }
  }

  // No data of the member came in the last calls, nor of any other call. A member that was never
  // seen is not absent: its program may still start.
  bool Absent(MemberIndex member) const {
    return members_[member.index()].calls_without >= kCallsWithout;
  }
  // The member was seen in two calls after `call`, so it sends nothing more for this one: the data
  // under way at the beginning of the first of the two has arrived, or is lost. Or it has said so.
  bool Past(MemberIndex member, Sequence call) const {
    const std::optional<Sequence>& before = members_[member.index()].before;
    return before && *before > call;
  }

 private:
  // Chosen: a rank that is late, or loses everything that it sends for a moment, is heard in one of
  // so many calls.
  static constexpr int kCallsWithout = 3;

  struct Member {
    std::optional<Sequence> newest;
    std::optional<Sequence> before;  // the newest but one
    std::optional<Sequence> asked_in_vain;
    int calls_without = 0;
  };
  std::vector<Member> members_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_ATTENDANCE_H_
