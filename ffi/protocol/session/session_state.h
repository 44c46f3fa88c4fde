// The state of a session that the parts of an endpoint share.

#ifndef FFI_PROTOCOL_SESSION_SESSION_STATE_H_
#define FFI_PROTOCOL_SESSION_SESSION_STATE_H_

#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/collective/directory.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/peers/peer_table.h"
#include "ffi/protocol/session/call_table.h"
#include "ffi/protocol/stats.h"

namespace optireduce {

struct SessionState {
  explicit SessionState(const EndpointOptions& the_options) : options(the_options) {}
  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;

  const EndpointOptions options;
  Counters counters;
  PeerTable peers{options};
  BufferPool pool;  // outlives the collectives and the calls
  Directory directory{options};
  CallTable calls{options, peers, pool};
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_SESSION_STATE_H_
