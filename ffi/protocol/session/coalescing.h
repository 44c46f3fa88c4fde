// The time for which received datagrams may stay in the socket, as a network card with interrupt
// coalescing holds them: a turn of the driver handles more of them then, and costs less for each.

#ifndef FFI_PROTOCOL_SESSION_COALESCING_H_
#define FFI_PROTOCOL_SESSION_COALESCING_H_

#include "ffi/base/time.h"
#include "ffi/protocol/session/call_table.h"
#include "ffi/protocol/session/peer_table.h"

namespace optireduce {

// Zero unless all calls of the program are far from their ends, and the paths to other hosts slow.
Duration CoalescingTime(const PeerTable& peers, const CallTable& calls);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_COALESCING_H_
