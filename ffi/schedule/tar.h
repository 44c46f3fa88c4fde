// Transpose AllReduce (TAR): every rank sends its part of each shard directly to the shard's owner,
// and each owner sends the sum directly to all ranks. No partial sum is forwarded, so a lost
// datagram costs one contribution to one segment.
// Source: Warraich et al., OptiReduce, NSDI'25, section on Transpose AllReduce.

#ifndef FFI_SCHEDULE_TAR_H_
#define FFI_SCHEDULE_TAR_H_

#include <cstdint>
#include <vector>

#include "ffi/base/ids.h"

namespace optireduce {

// The order in which `member` serves its peers in one stage. In each of the n - 1 steps every
// member sends to one other and receives from one other: in the d-th step i sends to (i - d) mod n.
std::vector<MemberIndex> TarSendOrder(std::uint16_t world_size, MemberIndex member);

}  // namespace optireduce

#endif  // FFI_SCHEDULE_TAR_H_
