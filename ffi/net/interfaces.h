// The network interfaces of this host.

#ifndef FFI_NET_INTERFACES_H_
#define FFI_NET_INTERFACES_H_

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ffi/base/status.h"

namespace optireduce {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric IPv4 or IPv6; a link-local one names its interface (%eth0)
};

// The addresses of the interfaces that are up, in the order of the kernel.
Result<std::vector<InterfaceAddress>> InterfaceAddresses();

// The MTU in bytes of the interface that has this address; nothing for loopback, whose addresses
// may stand for the whole host. `socket` is any socket.
std::optional<std::size_t> InterfaceMtuBytes(int socket, const sockaddr* address);

}  // namespace optireduce

#endif  // FFI_NET_INTERFACES_H_
