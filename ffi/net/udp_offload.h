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

// Sends one batch over a pair of loopback sockets with the buffers of `options`, and closes them.
// Takes a few milliseconds if datagrams pass, and a second if they do not. A network card may still
// refuse a feature that loopback has; the port detects that itself.
Result<UdpFeatures> ProbeUdp(const UdpPortOptions& options);

}  // namespace optireduce

#endif  // FFI_NET_UDP_OFFLOAD_H_
