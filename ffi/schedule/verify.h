// Proves a schedule by running it on sets of contributions instead of numbers.

#ifndef FFI_SCHEDULE_VERIFY_H_
#define FFI_SCHEDULE_VERIFY_H_

#include "ffi/base/status.h"
#include "ffi/schedule/schedule.h"

namespace optireduce {

// Ok when every shard is reduced from all contributions, each exactly once, by its owner; every
// rank ends with every reduced shard; nothing is copied before it is reduced; no round has more
// than `incast` senders to one receiver; no transfer goes from a rank to itself or out of range.
// Otherwise the message names the first transfer or shard that is wrong.
Status VerifySchedule(const Schedule& schedule);

}  // namespace optireduce

#endif  // FFI_SCHEDULE_VERIFY_H_
