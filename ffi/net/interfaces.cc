#include "ffi/net/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>

#include "ffi/net/socket.h"

namespace optireduce {
namespace {

struct Free {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

}  // namespace

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
