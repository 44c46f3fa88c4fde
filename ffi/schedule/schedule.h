// Schedules: senders, receivers and shards by round, as data. Pure functions compute a schedule,
// verify.h proves it, and the endpoint takes the order from it in which a rank serves its peers.

#ifndef FFI_SCHEDULE_SCHEDULE_H_
#define FFI_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "ffi/base/ids.h"

namespace optireduce {

enum class Op : std::uint8_t {
  kReduce,  // the sender's contribution to the shard, to be added by the receiver
  kCopy,    // the reduced shard, to be kept by the receiver
};

struct Transfer {
  MemberIndex from;
  MemberIndex to;
  MemberIndex shard;  // named by its owner
  Op op;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// Transfers that may run at the same time.
using Round = std::vector<Transfer>;

struct Schedule {
  std::uint16_t world_size = 0;
  std::uint16_t incast = 0;  // most senders to one receiver in a round
  std::vector<Round> rounds;
};

}  // namespace optireduce

#endif  // FFI_SCHEDULE_SCHEDULE_H_
