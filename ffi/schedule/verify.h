// Proves a schedule by running it on sets of contributions instead of numbers.

#ifndef FFI_SCHEDULE_VERIFY_H_
#define FFI_SCHEDULE_VERIFY_H_

#include "ffi/base/status.h"
#include "ffi/schedule/schedule.h"

namespace optireduce {

// Ok if every shard is reduced by its owner from all contributions, each exactly once; every rank
// ends with every reduced shard; no shard is copied before it is reduced; no round has more than
// `incast` senders to one receiver; no transfer goes from a rank to itself or out of range.
// Otherwise the message names the first wrong transfer or shard.
Status VerifySchedule(const Schedule& schedule);

}  // namespace optireduce

#endif  // FFI_SCHEDULE_VERIFY_H_
