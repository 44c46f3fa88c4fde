#include "ffi/net/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "ffi/net/socket.h"

namespace optireduce {
namespace {

struct Free {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

bool IsSameHost(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

std::optional<std::size_t> InterfaceMtuBytes(int socket, const sockaddr* address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, Free> owned(list);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool other = entry->ifa_addr == nullptr || !IsSameHost(entry->ifa_addr, address);
    if (other || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    ifreq request{};
    std::strncpy(request.ifr_name, entry->ifa_name, sizeof(request.ifr_name) - 1);
    if (ioctl(socket, SIOCGIFMTU, &request) != 0) return std::nullopt;
    return static_cast<std::size_t>(request.ifr_mtu);
  }
  return std::nullopt;
}

Result<std::vector<InterfaceAddress>> InterfaceAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return SystemError("could not list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, Free> owned(list);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> text{};
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(entry->ifa_addr, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
        0) {
      found.push_back({.interface = entry->ifa_name, .address = text.data()});
    }
  }
  return found;
}

}  // namespace optireduce
