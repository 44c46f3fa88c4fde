// The UDP features of this host, found by a probe.

#ifndef FFI_NET_UDP_OFFLOAD_H_
#define FFI_NET_UDP_OFFLOAD_H_

#include <cstddef>

#include "ffi/base/status.h"
#include "ffi/net/udp_port.h"

namespace optireduce {

struct UdpFeatures {
  bool gso = false;                      // a batch leaves in one call (UDP_SEGMENT)
  bool gro = false;                      // a batch arrives in one call (UDP_GRO)
  std::size_t receive_buffer_bytes = 0;  // granted
  std::size_t send_buffer_bytes = 0;     // granted
  std::size_t loopback_mtu_bytes = 0;
};

// Sends one batch over a pair of sockets on loopback, made with the buffers of `options` and closed
// again. Takes a few milliseconds at most when datagrams get through, a second when they do not. A
// real network card may still refuse a feature of loopback; a port detects that by itself.
Result<UdpFeatures> ProbeUdp(const UdpPortOptions& options);

}  // namespace optireduce

#endif  // FFI_NET_UDP_OFFLOAD_H_
