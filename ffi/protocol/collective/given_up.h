// Calls of one collective that a rank has ended with an error, or never makes: peers wait in vain
// for that rank in one of them, whenever they come to that call. They are kept as intervals, so
// that a rank that is hundreds of cancelled calls behind still learns of each.

#ifndef FFI_PROTOCOL_COLLECTIVE_GIVEN_UP_H_
#define FFI_PROTOCOL_COLLECTIVE_GIVEN_UP_H_

#include <cstdint>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"

namespace optireduce {

class GivenUpCalls {
 public:
  struct Interval {
    Sequence first;
    Sequence last;
    bool disagreed = false;  // the error is that the ranks make different calls

    bool Contains(Sequence call) const { return first <= call && call <= last; }
  };

  // Intervals of the same kind of error that touch become one. Returns the interval that holds
  // these calls now.
  Interval Add(Interval added, Status why);
  // The interval of the call; null where it was not given up.
  const Interval* Find(Sequence call) const;
  const Status& why() const { return why_; }

 private:
  std::vector<Interval> intervals_;  // ascending by their first call
  Status why_;                       // the error of the newest interval
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_GIVEN_UP_H_
