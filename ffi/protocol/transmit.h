// Outgoing datagrams of an endpoint.

#ifndef FFI_PROTOCOL_TRANSMIT_H_
#define FFI_PROTOCOL_TRANSMIT_H_

#include <cstddef>

#include "ffi/base/bytes.h"
#include "ffi/base/ids.h"

namespace optireduce {

// Datagrams to one peer, back to back in `pieces`: all of `datagram_bytes` except possibly a
// shorter last one, as one call with UDP_SEGMENT sends them. The pieces lie in the buffer given to
// PollTransmit and in the data of calls, and are valid until the next non-const call of the
// endpoint: a driver that cannot send them immediately copies them (see Join).
struct Transmit {
  Rank to;
  Pieces pieces;
  std::size_t bytes = 0;           // size of all of them together
  std::size_t datagram_bytes = 0;  // size of each but the last
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_TRANSMIT_H_
