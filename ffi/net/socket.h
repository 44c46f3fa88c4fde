// Small parts of the socket interface: an owned descriptor, options, addresses.

#ifndef FFI_NET_SOCKET_H_
#define FFI_NET_SOCKET_H_

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <system_error>

#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/net/clock.h"

namespace optireduce {

// Owns a file descriptor; -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&&) = delete;

  int get() const { return fd_; }

 private:
  int fd_;
};

// "<what>: <the system's message>." with the status code for `error`, a value of errno.
inline Status SystemError(const std::string& what, int error) {
  const bool resource = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  return Status(resource ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
                what + ": " + std::generic_category().message(error) + ".");
}

inline bool SetSocketOption(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

inline std::optional<int> GetSocketOption(int fd, int level, int name) {
  int value = 0;
  socklen_t bytes = sizeof(value);
  if (getsockopt(fd, level, name, &value, &bytes) != 0) return std::nullopt;
  return value;
}

// ppoll() up to an instant.
inline int PollUntil(std::span<pollfd> polled, Instant until) {
  const Duration left = std::max(until - ClockNow(), Duration::zero());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  const timespec timeout = {.tv_sec = static_cast<std::time_t>(seconds.count()),
                            .tv_nsec = static_cast<long>((left - seconds).count())};
  return ppoll(polled.data(), polled.size(), until == kNever ? nullptr : &timeout, nullptr);
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(sockaddr_storage);

  int family() const { return storage.ss_family; }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  std::uint16_t port() const {
    return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                      : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
};

// `address` is a numeric IPv4 or IPv6 address; a link-local one may name its interface (%eth0).
inline Result<SocketAddress> ParseAddress(const std::string& address, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  in_addr strict;
  // An address without a colon must be full IPv4: getaddrinfo() reads "10.1" as 10.0.0.1.
  const bool plausible =
      address.find(':') != std::string::npos || inet_pton(AF_INET, address.c_str(), &strict) == 1;
  if (!plausible ||
      getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return InvalidArgument(
        "expected a numeric IPv4 or IPv6 address such as \"10.0.0.1\" or \"fd00::1\", "
        "got \"" +
        address + "\"; resolve host names first.");
  }
  SocketAddress parsed;
  parsed.bytes = found->ai_addrlen;
  std::memcpy(&parsed.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return parsed;
}

}  // namespace optireduce

#endif  // FFI_NET_SOCKET_H_
