// File descriptors and addresses.

#include "ffi/net/socket.h"

#include <fcntl.h>

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

// The descriptor is closed by the end of its owner: before, after a move, and after the end.
std::pair<bool, bool> OpenBeforeAndAfter(bool moved) {
  int fd = -1;
  bool before = false;
  {
    Descriptor owner(open("/dev/null", O_RDONLY | O_CLOEXEC));
    fd = owner.get();
    if (moved) {
      const Descriptor other(std::move(owner));
      before = IsOpen(fd) && owner.get() == -1;  // NOLINT(bugprone-use-after-move)
    } else {
      before = IsOpen(fd);
    }
  }
  return {before, IsOpen(fd)};
}

void Bind(nb::module_& m) {
  m.def("open_before_and_after", &OpenBeforeAndAfter);
  // (family, port)
  m.def("parse_address", [](const std::string& address, std::uint16_t port) {
    const SocketAddress parsed = Unwrap(ParseAddress(address, port));
    return std::pair(parsed.family() == AF_INET6 ? 6 : 4, parsed.port());
  });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
