// The interface of a lane to the network: datagrams out, datagrams in, and waiting for either.

#ifndef FFI_NET_DATAGRAM_PORT_H_
#define FFI_NET_DATAGRAM_PORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "ffi/base/bytes.h"
#include "ffi/base/ids.h"
#include "ffi/base/time.h"

namespace optireduce {

// The largest payload of one UDP datagram, and of one batch.
// Source: 65535 (total length of IPv4, RFC 791) less 20 (IPv4 header) and 8 (UDP header, RFC 768).
inline constexpr std::size_t kUdpPayloadBytesMax = 65507;

// Datagrams that did not reach the network or their peer, as far as the kernel reports. The
// protocol treats all of them as ordinary loss. X(name, meaning)
#define OPTIREDUCE_SEND_ERRORS(X)                                                           \
  X(refused, "datagrams to a port on which no process of the peer's host listens")          \
  X(unreachable, "datagrams without a route, or forbidden by a firewall on this host")      \
  X(too_large, "datagrams longer than the MTU of a local interface or, by ICMP, of a path") \
  X(unsent, "datagrams of batches that the kernel accepted in part, or not for 0.1 s")      \
  X(queue_full, "sends refused because a queue of this host was full")

struct SendErrors {
#define OPTIREDUCE_DECLARE_SEND_ERROR(name, meaning) std::uint64_t name = 0;
  OPTIREDUCE_SEND_ERRORS(OPTIREDUCE_DECLARE_SEND_ERROR)
#undef OPTIREDUCE_DECLARE_SEND_ERROR
};

class DatagramPort {
 public:
  virtual ~DatagramPort() = default;

  // Sends the datagrams that lie back to back in `pieces`, each `datagram_bytes` long except the
  // last. At most two pieces per datagram, plus one. False if the network accepts no more now:
  // nothing was sent, and Wait() returns when a retry may succeed.
  virtual bool Send(Rank to, Pieces pieces, std::size_t datagram_bytes) = 0;

  // Passes every waiting datagram, up to a bound of the port, to `take`; the bytes are valid during
  // the call. Returns their number.
  virtual std::size_t Receive(const std::function<void(std::span<const std::byte>)>& take) = 0;

  // Returns when a datagram can be received, when a refused Send may succeed, after Wake(), or at
  // `until`. Spurious returns are allowed.
  virtual void Wait(Instant until) = 0;

  // Ends the current Wait(), or else the next one. The only call that other threads may make.
  virtual void Wake() = 0;

  // The number of datagrams that one Send may hold, together at most kUdpPayloadBytesMax; 1 without
  // segmentation offload.
  virtual std::size_t batch_max() const = 0;

  // Datagrams dropped by the kernel because the socket's buffer was full, as far as it reports
  // them.
  virtual std::uint64_t socket_drops() const = 0;

  virtual SendErrors send_errors() const = 0;
};

}  // namespace optireduce

#endif  // FFI_NET_DATAGRAM_PORT_H_
