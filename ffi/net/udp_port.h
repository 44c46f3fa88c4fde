// A DatagramPort over one UDP socket of Linux: many datagrams per system call, both ways.
//
// Sending uses segmentation offload (UDP_SEGMENT): a batch crosses the kernel as one buffer. If the
// kernel or the device refuses an offloaded batch, the port sends each datagram separately from
// then on. Receiving uses UDP_GRO in the same way. Nothing is allocated per datagram.
//
// Errors of one peer do not affect others. With IP_RECVERR the kernel reports a full queue of this
// host (ENOBUFS) instead of losing the datagram silently; but an error of an earlier datagram, such
// as the refusal by a dead peer, then fails the next call on the socket, for any peer. The port
// takes such errors off the socket, counts them, and repeats its own call.

#ifndef FFI_NET_UDP_PORT_H_
#define FFI_NET_UDP_PORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/net/datagram_port.h"
#include "ffi/net/socket.h"

namespace optireduce {

// The port of an address to which nothing is sent. Source: RFC 863, the discard service.
inline constexpr std::uint16_t kDiscardPort = 9;

struct UdpPortOptions {
  // Numeric IPv4 or IPv6 address of this host, or "0.0.0.0" or "::" for all of one family. Peers
  // must be of the same family.
  std::string bind_address = "0.0.0.0";
  // The first port that is free, from `port` to `port_last`; 0: the kernel chooses.
  std::uint16_t port = 0;
  std::uint16_t port_last = 0;  // the last port to try; less than `port`: that one only
  // Chosen: 4 MiB absorb 35 ms at 1 Gbit/s. The kernel may grant less (net.core.rmem_max).
  std::size_t receive_buffer_bytes = std::size_t{4} << 20;
  // Chosen: the kernel's usual default. A larger buffer would only move the queue from the
  // protocol, which can reorder it, to the kernel, which cannot.
  std::size_t send_buffer_bytes = 208 * 1024;
  bool segmentation_offload = true;  // false: as on a host without UDP_SEGMENT
  bool receive_offload = true;       // false: as on a host without UDP_GRO
};

struct PeerAddress {
  std::string address;  // numeric
  std::uint16_t port = 0;
};

class UdpPort : public DatagramPort {
 public:
  static Result<std::unique_ptr<UdpPort>> Create(const UdpPortOptions& options);
  ~UdpPort() override;
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  // The peers by rank, set before the first Send; a rank that is never sent to needs an entry too.
  // `datagram_bytes_max` is the longest datagram of any Send.
  Status SetPeers(const std::vector<PeerAddress>& peers, std::size_t datagram_bytes_max);

  // The MTU in bytes, IP header included, of the interface towards a numeric address. A smaller one
  // that the kernel keeps of an ICMP message does not count, because any host may send one.
  static Result<std::size_t> path_mtu_bytes(const std::string& address);

  std::uint16_t local_port() const { return local_port_; }
  // Bytes of datagrams that the kernel holds: half of the size that it reports, because it doubles
  // the requested size for its own bookkeeping.
  std::size_t granted_receive_buffer_bytes() const { return granted_receive_buffer_bytes_; }
  std::size_t granted_send_buffer_bytes() const { return granted_send_buffer_bytes_; }
  bool segmentation_offload() const { return segmentation_offload_; }
  bool receive_offload() const { return receive_offload_; }

  // DatagramPort. All calls but Wake() belong to one thread, the one that waits.
  bool Send(Rank to, Pieces pieces, std::size_t datagram_bytes) override;
  std::size_t Receive(const std::function<void(std::span<const std::byte>)>& take) override;
  void Wait(Instant until) override;
  void Wake() override;
  std::size_t batch_max() const override { return batch_max_; }
  std::uint64_t socket_drops() const override { return socket_drops_; }
  SendErrors send_errors() const override { return errors_; }

 private:
  enum class Outcome : std::uint8_t {
    kSent,
    kLost,            // lost by the network: counted, and treated as sent
    kSocketFull,      // POLLOUT reports room
    kQueueFull,       // room is not reported
    kOffloadRefused,  // the datagrams may leave one by one
    kAgain,           // the error was that of an earlier datagram, and has been handled
  };

  // Buffers of one recvmmsg().
  struct ReceiveBuffers;

  UdpPort(Descriptor socket, Descriptor wake, int family);

  Status Bind(const UdpPortOptions& options);
  Status Configure(const UdpPortOptions& options);
  void ConfigureBuffers(const UdpPortOptions& options);

  Outcome SendBatch(const SocketAddress& peer, Pieces pieces, std::size_t datagram_bytes);
  Outcome SendEach(const SocketAddress& peer, Pieces pieces, std::size_t datagram_bytes);
  Outcome Classify(int error, bool offloaded, int attempt);
  std::size_t Split(std::size_t message, std::size_t bytes,
                    const std::function<void(std::span<const std::byte>)>& take);
  // Takes the errors of earlier datagrams off the socket, so that they do not fail the next call.
  void DrainErrors();
  void CountError(int error);

  const Descriptor socket_;
  const Descriptor wake_;
  const int family_;
  std::uint16_t local_port_ = 0;
  std::size_t granted_receive_buffer_bytes_ = 0;
  std::size_t granted_send_buffer_bytes_ = 0;
  bool segmentation_offload_ = false;
  bool receive_offload_ = false;
  std::size_t datagram_bytes_max_ = kUdpPayloadBytesMax;
  std::size_t batch_max_ = 1;
  std::vector<SocketAddress> peers_;
  std::unique_ptr<ReceiveBuffers> receive_;
  SendErrors errors_;
  std::uint64_t socket_drops_ = 0;
  bool timer_slack_set_ = false;
  Instant queue_full_since_ = kNever;
  Outcome refused_ = Outcome::kSent;  // reason of the last refused Send, until the next Wait ends
};

}  // namespace optireduce

#endif  // FFI_NET_UDP_PORT_H_
