#include "ffi/net/udp_port.h"

#include <linux/errqueue.h>
#include <linux/udp.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/net/clock.h"
#include "ffi/net/interfaces.h"

namespace optireduce {
namespace {

// Source: UDP_MAX_SEGMENTS of Linux before 6.9, which later kernels doubled.
constexpr std::size_t kSegmentsMax = 64;
// Pieces in one batch: the payload of each datagram, and the bytes between payloads.
constexpr std::size_t kPiecesMax = 2 * kSegmentsMax + 1;

// Messages of one recvmmsg(). Chosen: 1 MiB of buffers stays in the second-level cache; with
// UDP_GRO each of them holds up to 64 datagrams.
constexpr std::size_t kReceiveMessages = 16;
// Source: a UDP payload is shorter than 2^16 bytes, and so is a UDP_GRO buffer.
constexpr std::size_t kReceiveBufferBytes = std::size_t{1} << 16;
// Room for UDP_GRO (an int) and SO_RXQ_OVFL (32 bits).
constexpr std::size_t kReceiveControlBytes =
    CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(std::uint32_t));

// Attempts of a call that fails with the error of an earlier datagram.
// Chosen: one for the pending error, the others for errors that arrive in between.
constexpr int kAttempts = 4;
// Bounds the time spent on errors under an attack. Chosen: far more than the ranks that die between
// two calls.
constexpr int kErrorsPerDrain = 256;
// Chosen: the kernel's extended error with its address and the head of the failed datagram.
constexpr std::size_t kErrorControlBytes = 512;

// The kernel does not report room in the queue of a device.
// Chosen: 25 kB leave a 1 Gbit/s link in this time, and a faster one is free again at once.
constexpr Duration kQueueFullRetry = std::chrono::microseconds(200);
// Some devices report a full queue for datagrams that they never take, such as a veth whose other
// end has a smaller MTU. Chosen: a queue of a thousand datagrams at 100 Mbit/s is empty by then.
constexpr Duration kQueueFullMax = std::chrono::milliseconds(100);

// Chosen: 1 ns, the minimum; the default of 50 us would delay every deadline by as much.
constexpr unsigned long kTimerSlackNs = 1;

// Datagrams leave whole or not at all: the loss of a fragment would lose the datagram, and the peer
// would have to reassemble fragments. The MTU of an ICMP message is ignored, because any host may
// send one: Flow::black_hole detects a smaller path MTU by lost datagrams. Also enables error
// reports; see the header. Source: RFC 8899 3 and 4.6.
bool SetPathOptions(int fd, int family) {
  if (family == AF_INET6) {
    return SetSocketOption(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE) &&
           SetSocketOption(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
  }
  return SetSocketOption(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE) &&
         SetSocketOption(fd, IPPROTO_IP, IP_RECVERR, 1);
}

template <typename T>
T ControlValue(cmsghdr* control) {
  T value;
  std::memcpy(&value, CMSG_DATA(control), sizeof(value));
  return value;
}

iovec VectorOf(std::span<const std::byte> bytes) {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

}  // namespace

struct UdpPort::ReceiveBuffers {
  std::vector<std::byte> bytes = std::vector<std::byte>(kReceiveMessages * kReceiveBufferBytes);
  std::array<mmsghdr, kReceiveMessages> messages{};
  std::array<iovec, kReceiveMessages> pieces{};
  struct Control {
    alignas(cmsghdr) std::array<std::byte, kReceiveControlBytes> bytes;
  };
  std::array<Control, kReceiveMessages> controls{};

  ReceiveBuffers() {
    for (std::size_t i = 0; i < kReceiveMessages; ++i) {
      pieces[i] = {.iov_base = Buffer(i), .iov_len = kReceiveBufferBytes};
      messages[i].msg_hdr.msg_iov = &pieces[i];
      messages[i].msg_hdr.msg_iovlen = 1;
      messages[i].msg_hdr.msg_control = controls[i].bytes.data();
    }
  }
  std::byte* Buffer(std::size_t message) { return &bytes[message * kReceiveBufferBytes]; }
};

UdpPort::UdpPort(Descriptor socket, Descriptor wake, int family)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      family_(family),
      receive_(std::make_unique<ReceiveBuffers>()) {}

UdpPort::~UdpPort() = default;

Result<std::unique_ptr<UdpPort>> UdpPort::Create(const UdpPortOptions& options) {
  Result<SocketAddress> local = ParseAddress(options.bind_address, 0);
  if (!local.ok()) return local.status();
  const int family = local.value().family();
  Descriptor socket(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return SystemError("could not make a UDP socket", errno);
  Descriptor wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (wake.get() < 0) return SystemError("could not make an eventfd", errno);

  std::unique_ptr<UdpPort> port(new UdpPort(std::move(socket), std::move(wake), family));
  if (Status status = port->Configure(options); !status.ok()) return status;
  if (Status status = port->Bind(options); !status.ok()) return status;
  SocketAddress bound;
  if (getsockname(port->socket_.get(), bound.raw(), &bound.bytes) != 0) {
    return SystemError("could not read the port of a UDP socket", errno);
  }
  port->local_port_ = bound.port();
  return port;
}

Status UdpPort::Bind(const UdpPortOptions& options) {
  const int last = std::max(options.port, options.port_last);
  for (int number = options.port; number <= last; ++number) {
    Result<SocketAddress> local =
        ParseAddress(options.bind_address, static_cast<std::uint16_t>(number));
    if (bind(socket_.get(), local.value().raw(), local.value().bytes) == 0) return Status();
    if (errno != EADDRINUSE) break;
  }
  const int error = errno;
  if (error == EADDRINUSE && options.port_last > options.port) {
    return {StatusCode::kUnavailable,
            "no UDP port from " + std::to_string(options.port) + " to " + std::to_string(last) +
                " is free on " + options.bind_address +
                ": each process of a host takes one for each of its lanes. Give a wider range."};
  }
  return SystemError("could not bind a UDP socket to " + options.bind_address + ", port " +
                         std::to_string(options.port) +
                         "; give an address of this host and a port that is free (0 for any)",
                     error);
}

Status UdpPort::Configure(const UdpPortOptions& options) {
  const int fd = socket_.get();
  if (family_ == AF_INET6 && !SetSocketOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1)) {
    return SystemError("could not keep a UDP socket to IPv6", errno);
  }
  if (!SetPathOptions(fd, family_)) {
    return SystemError("could not set up path MTU discovery and error reports of a UDP socket",
                       errno);
  }
  ConfigureBuffers(options);
  // Older kernels lack these options; without one only speed, or a counter, is lost.
  SetSocketOption(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
  receive_offload_ = options.receive_offload && SetSocketOption(fd, IPPROTO_UDP, UDP_GRO, 1);
  // Support by the device shows at the first send only.
  segmentation_offload_ =
      options.segmentation_offload && GetSocketOption(fd, IPPROTO_UDP, UDP_SEGMENT).has_value();
  return {};
}

void UdpPort::ConfigureBuffers(const UdpPortOptions& options) {
  const int fd = socket_.get();
  const auto limit = [](std::size_t bytes) {
    return static_cast<int>(std::min<std::size_t>(bytes, std::size_t{1} << 30));
  };
  // The first option is not limited by net.core.rmem_max, but needs CAP_NET_ADMIN.
  const int receive_bytes = limit(options.receive_buffer_bytes);
  if (!SetSocketOption(fd, SOL_SOCKET, SO_RCVBUFFORCE, receive_bytes)) {
    SetSocketOption(fd, SOL_SOCKET, SO_RCVBUF, receive_bytes);
  }
  SetSocketOption(fd, SOL_SOCKET, SO_SNDBUF, limit(options.send_buffer_bytes));
  const auto granted = [fd](int option) {
    return static_cast<std::size_t>(GetSocketOption(fd, SOL_SOCKET, option).value_or(0)) / 2;
  };
  granted_receive_buffer_bytes_ = granted(SO_RCVBUF);
  granted_send_buffer_bytes_ = granted(SO_SNDBUF);
}

Status UdpPort::SetPeers(const std::vector<PeerAddress>& peers, std::size_t datagram_bytes_max) {
  if (datagram_bytes_max == 0 || datagram_bytes_max > kUdpPayloadBytesMax) {
    return InvalidArgument("datagram_bytes_max must be in [1, " +
                           std::to_string(kUdpPayloadBytesMax) + "], the payload of UDP, got " +
                           std::to_string(datagram_bytes_max) + ".");
  }
  std::vector<SocketAddress> parsed;
  for (const PeerAddress& peer : peers) {
    const std::string who = "rank " + std::to_string(parsed.size()) + ": ";
    Result<SocketAddress> one = ParseAddress(peer.address, peer.port);
    if (!one.ok()) return Status(one.status().code(), who + one.status().message());
    if (one.value().family() != family_) {
      return InvalidArgument(who + "the address " + peer.address +
                             " is not of this rank's family, " +
                             (family_ == AF_INET6 ? "IPv6" : "IPv4") +
                             "; bind every rank to addresses of one family.");
    }
    if (peer.port == 0) {
      return InvalidArgument(
          who +
          "a peer's port must be in [1, 65535], got 0; give the port that it got "
          "when it bound its socket.");
    }
    parsed.push_back(one.value());
  }
  peers_ = std::move(parsed);
  datagram_bytes_max_ = datagram_bytes_max;
  batch_max_ = segmentation_offload_ ? kSegmentsMax : 1;
  return {};
}

Result<std::size_t> UdpPort::path_mtu_bytes(const std::string& address) {
  Result<SocketAddress> peer = ParseAddress(address, kDiscardPort);
  if (!peer.ok()) return peer.status();
  const int family = peer.value().family();
  const Descriptor socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return SystemError("could not make a UDP socket", errno);
  if (!SetPathOptions(socket.get(), family) ||
      connect(socket.get(), peer.value().raw(), peer.value().bytes) != 0) {
    return SystemError("there is no route to " + address, errno);
  }
  const std::optional<int> mtu = family == AF_INET6
                                     ? GetSocketOption(socket.get(), IPPROTO_IPV6, IPV6_MTU)
                                     : GetSocketOption(socket.get(), IPPROTO_IP, IP_MTU);
  if (!mtu) return SystemError("could not read the path MTU to " + address, errno);
  SocketAddress local;
  if (getsockname(socket.get(), local.raw(), &local.bytes) != 0) {
    return SystemError("could not read the address towards " + address, errno);
  }
  // A rank on this host is reached over the loopback interface, whatever its address is.
  const auto of_path = static_cast<std::size_t>(*mtu);
  return std::max(of_path, InterfaceMtuBytes(socket.get(), local.raw()).value_or(of_path));
}

// ------------------------------------------------------------------------------------- sending

bool UdpPort::Send(Rank to, Pieces pieces, std::size_t datagram_bytes) {
  OR_CHECK(to.index() < peers_.size() && pieces.size() <= kPiecesMax);
  OR_CHECK(datagram_bytes > 0 && datagram_bytes <= datagram_bytes_max_);
  const std::size_t bytes = SizeOf(pieces);
  OR_CHECK(bytes > 0);
  const SocketAddress& peer = peers_[to.index()];
  Outcome outcome = Outcome::kOffloadRefused;
  if (segmentation_offload_ && bytes > datagram_bytes) {
    outcome = SendBatch(peer, pieces, datagram_bytes);
  }
  if (outcome == Outcome::kOffloadRefused) {
    outcome = SendEach(peer, pieces, datagram_bytes);
    if (outcome == Outcome::kSent && bytes > datagram_bytes) {
      // The datagrams left one by one, so the offload itself does not work here. (Lost datagrams
      // prove nothing: an older kernel refuses a batch of datagrams that exceed the path MTU.)
      segmentation_offload_ = false;
      batch_max_ = 1;
    }
  }
  if (outcome == Outcome::kQueueFull) {
    ++errors_.queue_full;
    const Instant now = ClockNow();
    queue_full_since_ = std::min(queue_full_since_, now);
    if (now - queue_full_since_ > kQueueFullMax) {
      errors_.unsent += (bytes + datagram_bytes - 1) / datagram_bytes;
      outcome = Outcome::kLost;
    }
  }
  const bool refused = outcome == Outcome::kSocketFull || outcome == Outcome::kQueueFull;
  if (outcome != Outcome::kQueueFull) queue_full_since_ = kNever;
  if (refused) refused_ = outcome;
  return !refused;
}

UdpPort::Outcome UdpPort::SendBatch(const SocketAddress& peer, Pieces pieces,
                                    std::size_t datagram_bytes) {
  OR_CHECK(SizeOf(pieces) <= kUdpPayloadBytesMax);
  // Uninitialized: only one entry per piece is filled in.
  std::array<iovec, kPiecesMax> vectors;
  std::ranges::transform(pieces, vectors.begin(), VectorOf);
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(std::uint16_t))> control{};
  msghdr message{};
  message.msg_name = const_cast<sockaddr_storage*>(&peer.storage);
  message.msg_namelen = peer.bytes;
  message.msg_iov = vectors.data();
  message.msg_iovlen = pieces.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const segment = CMSG_FIRSTHDR(&message);
  segment->cmsg_level = IPPROTO_UDP;
  segment->cmsg_type = UDP_SEGMENT;
  segment->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const auto segment_bytes = static_cast<std::uint16_t>(datagram_bytes);
  std::memcpy(CMSG_DATA(segment), &segment_bytes, sizeof(segment_bytes));
  for (int attempt = 1;; ++attempt) {
    if (sendmsg(socket_.get(), &message, MSG_DONTWAIT) >= 0) return Outcome::kSent;
    const Outcome outcome = Classify(errno, /*offloaded=*/true, attempt);
    if (outcome != Outcome::kAgain) return outcome;
  }
}

// kSent when at least one datagram left, kLost when the network took none of them.
UdpPort::Outcome UdpPort::SendEach(const SocketAddress& peer, Pieces pieces,
                                   std::size_t datagram_bytes) {
  // Uninitialized: only one entry per datagram, usually one, is filled in.
  std::array<mmsghdr, kSegmentsMax> messages;
  std::array<iovec, kPiecesMax + kSegmentsMax> vectors;
  std::size_t count = 0;
  std::size_t cut = 0;   // entries of `vectors` filled in
  std::size_t left = 0;  // remaining bytes of the datagram
  for (std::span<const std::byte> piece : pieces) {
    while (!piece.empty()) {
      if (left == 0) {
        OR_CHECK(count < kSegmentsMax);
        msghdr& header = (messages[count++] = {}).msg_hdr;
        header.msg_name = const_cast<sockaddr_storage*>(&peer.storage);
        header.msg_namelen = peer.bytes;
        header.msg_iov = &vectors[cut];
        left = datagram_bytes;
      }
      const std::span<const std::byte> part = piece.first(std::min(left, piece.size()));
      vectors[cut++] = VectorOf(part);
      ++messages[count - 1].msg_hdr.msg_iovlen;
      left -= part.size();
      piece = piece.subspan(part.size());
    }
  }
  Outcome result = Outcome::kLost;
  int attempt = 1;
  for (std::size_t next = 0; next < count;) {
    const int sent =
        sendmmsg(socket_.get(), &messages[next], static_cast<unsigned>(count - next), MSG_DONTWAIT);
    if (sent > 0) {
      next += static_cast<std::size_t>(sent);
      result = Outcome::kSent;
      attempt = 1;
      continue;
    }
    const Outcome outcome = Classify(errno, /*offloaded=*/false, attempt++);
    if (outcome == Outcome::kAgain) continue;
    if (outcome != Outcome::kLost) {
      if (next == 0) return outcome;
      // A partial batch has no result of its own; the protocol retransmits the rest.
      errors_.unsent += count - next;
      return Outcome::kSent;
    }
    ++next;
    attempt = 1;
  }
  return result;
}

UdpPort::Outcome UdpPort::Classify(int error, bool offloaded, int attempt) {
  switch (error) {
    case EAGAIN:
      return Outcome::kSocketFull;
    case ENOBUFS:
    case ENOMEM:
      return Outcome::kQueueFull;
    case EINTR:
      return Outcome::kAgain;
    case EINVAL:
    case EIO:
      if (offloaded) return Outcome::kOffloadRefused;
      break;
    default:
      break;
  }
  DrainErrors();
  if (attempt < kAttempts) return Outcome::kAgain;
  CountError(error);
  return Outcome::kLost;
}

void UdpPort::DrainErrors() {
  alignas(cmsghdr) std::array<std::byte, kErrorControlBytes> control;
  for (int i = 0; i < kErrorsPerDrain; ++i) {
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(socket_.get(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      const bool error = (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
                         (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR);
      if (!error) continue;
      const auto extended = ControlValue<sock_extended_err>(c);
      // An error of this host is the return value of the call itself, then or later.
      if (extended.ee_origin != SO_EE_ORIGIN_LOCAL) CountError(static_cast<int>(extended.ee_errno));
    }
  }
  // Reading SO_ERROR clears it.
  static_cast<void>(GetSocketOption(socket_.get(), SOL_SOCKET, SO_ERROR));
}

void UdpPort::CountError(int error) {
  if (error == ECONNREFUSED) {
    ++errors_.refused;
  } else if (error == EMSGSIZE) {
    ++errors_.too_large;
  } else {
    ++errors_.unreachable;
  }
}

// ----------------------------------------------------------------------------------- receiving

std::size_t UdpPort::Receive(const std::function<void(std::span<const std::byte>)>& take) {
  for (mmsghdr& message : receive_->messages) {
    message.msg_hdr.msg_controllen = kReceiveControlBytes;
    message.msg_hdr.msg_flags = 0;
  }
  int messages = -1;
  for (int attempt = 1; messages < 0 && attempt <= kAttempts; ++attempt) {
    messages = recvmmsg(socket_.get(), receive_->messages.data(), kReceiveMessages, MSG_DONTWAIT,
                        /*timeout=*/nullptr);
    if (messages >= 0) break;
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) DrainErrors();
  }
  std::size_t datagrams = 0;
  for (int i = 0; i < messages; ++i) {
    const auto message = static_cast<std::size_t>(i);
    datagrams += Split(message, receive_->messages[message].msg_len, take);
  }
  return datagrams;
}

std::size_t UdpPort::Split(std::size_t message, std::size_t bytes,
                           const std::function<void(std::span<const std::byte>)>& take) {
  msghdr& header = receive_->messages[message].msg_hdr;
  std::size_t datagram_bytes = bytes;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      datagram_bytes = static_cast<std::size_t>(std::max(1, ControlValue<int>(c)));
    } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
      // The kernel counts modulo 2^32.
      socket_drops_ += static_cast<std::uint32_t>(ControlValue<std::uint32_t>(c) -
                                                  static_cast<std::uint32_t>(socket_drops_));
    }
  }
  const std::span<const std::byte> all(receive_->Buffer(message), bytes);
  std::size_t datagrams = 0;
  // An empty buffer is one empty datagram.
  std::size_t offset = 0;
  do {
    const std::size_t length = std::min(datagram_bytes, bytes - offset);
    take(all.subspan(offset, length));
    ++datagrams;
    offset += length;
  } while (offset < bytes);
  return datagrams;
}

// ------------------------------------------------------------------------------------- waiting

void UdpPort::Wait(Instant until) {
  if (!timer_slack_set_) {
    // Here and not in Create, because the setting belongs to the thread.
    prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
    timer_slack_set_ = true;
  }
  if (refused_ == Outcome::kQueueFull) until = std::min(until, ClockNow() + kQueueFullRetry);
  const short out = refused_ == Outcome::kSocketFull ? POLLOUT : 0;
  std::array<pollfd, 2> polled = {{
      {.fd = socket_.get(), .events = static_cast<short>(POLLIN | out), .revents = 0},
      {.fd = wake_.get(), .events = POLLIN, .revents = 0},
  }};
  refused_ = Outcome::kSent;
  if (PollUntil(polled, until) <= 0) return;
  if ((polled[0].revents & POLLERR) != 0) DrainErrors();
  if ((polled[1].revents & POLLIN) != 0) {
    std::uint64_t times = 0;
    static_cast<void>(!read(wake_.get(), &times, sizeof(times)));
  }
}

void UdpPort::Wake() {
  const std::uint64_t one = 1;
  // Fails only after 2^64 - 2 wakes without a Wait().
  static_cast<void>(!write(wake_.get(), &one, sizeof(one)));
}

}  // namespace optireduce
