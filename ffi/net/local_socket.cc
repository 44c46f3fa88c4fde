#include "ffi/net/local_socket.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "ffi/base/quoted.h"

namespace optireduce {
namespace {

// Chosen: processes that look at the same moment; a stopped process takes none.
constexpr int kBacklog = 4;

constexpr mode_t kFolderMode = 0700;    // Chosen: of this user alone.
constexpr mode_t kSocketMode = 0600;    // Chosen: the same.
constexpr mode_t kModeOfOthers = 0077;  // Source: inode(7), the bits of group and others.

Result<Descriptor> OpenFolder(const std::string& path) {
  if (mkdir(path.c_str(), kFolderMode) != 0 && errno != EEXIST) {
    return SystemError("cannot create the folder " + Quoted(path), errno);
  }
  // A link could lead to a folder of another user.
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.get() < 0) return SystemError("cannot open the folder " + Quoted(path), errno);
  struct stat facts{};
  if (fstat(folder.get(), &facts) != 0 || facts.st_uid != geteuid() ||
      (facts.st_mode & kModeOfOthers) != 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "the folder " + Quoted(path) +
                      " must belong to this user, with the permissions 0700; remove it, or "
                      "correct them with chmod 700.");
  }
  return folder;
}

// The address of a name in an open folder: a path may be longer than an address can be.
Result<sockaddr_un> AddressOf(int folder, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = "/proc/self/fd/" + std::to_string(folder) + "/" + name;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("the name of a socket is too long: " + Quoted(name) + ".");
  }
  std::ranges::copy(path, address.sun_path);
  return address;
}

// The socket gets its name only when it listens: until then, a connection would be refused like
// one to a dead process.
Status Listen(int folder, int fd, const std::string& name) {
  const std::string unfinished = name + ".new";
  Result<sockaddr_un> address = AddressOf(folder, unfinished);
  if (!address.ok()) return address.status();
  unlinkat(folder, unfinished.c_str(), 0);
  const auto* const raw = reinterpret_cast<const sockaddr*>(&address.value());
  if (bind(fd, raw, sizeof(sockaddr_un)) != 0 ||
      fchmodat(folder, unfinished.c_str(), kSocketMode, 0) != 0 || listen(fd, kBacklog) != 0 ||
      renameat(folder, unfinished.c_str(), folder, name.c_str()) != 0) {
    const Status status = SystemError("cannot create the socket " + Quoted(name), errno);
    unlinkat(folder, unfinished.c_str(), 0);
    return status;
  }
  return Status();
}

bool IsOfThisUser(int client) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace

Result<std::unique_ptr<LocalSocket>> LocalSocket::Open(const std::string& folder,
                                                       const std::string& name) {
  Result<Descriptor> directory = OpenFolder(folder);
  if (!directory.ok()) return directory.status();
  Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  Descriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (listener.get() < 0 || stop.get() < 0) return SystemError("cannot create a socket", errno);
  if (Status status = Listen(directory.value().get(), listener.get(), name); !status.ok())
    return status;
  return std::unique_ptr<LocalSocket>(
      new LocalSocket(std::move(directory.value()), std::move(listener), std::move(stop), name));
}

LocalSocket::LocalSocket(Descriptor folder, Descriptor listener, Descriptor stop, std::string name)
    : process_(getpid()),
      folder_(std::move(folder)),
      listener_(std::move(listener)),
      stop_(std::move(stop)),
      name_(std::move(name)) {}

LocalSocket::~LocalSocket() {
  if (getpid() == process_) unlinkat(folder_.get(), name_.c_str(), 0);
}

std::optional<Descriptor> LocalSocket::Accept() {
  if (!WaitFor(listener_.get(), POLLIN, kNever)) return std::nullopt;
  Descriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (client.get() < 0 || !IsOfThisUser(client.get())) return std::nullopt;
  return client;
}

bool LocalSocket::Send(const Descriptor& client, std::string_view text, Instant until) {
  while (!text.empty()) {
    const ssize_t sent = send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      return false;
    } else if (!WaitFor(client.get(), POLLOUT, until)) {
      return false;
    }
  }
  return true;
}

bool LocalSocket::WaitForStop(Instant until) { return WaitFor(stop_.get(), POLLIN, until); }

void LocalSocket::Stop() {
  const std::uint64_t one = 1;
  // It cannot fail: the counter of the event is far from its end.
  (void)!write(stop_.get(), &one, sizeof(one));
}

bool LocalSocket::WaitFor(int fd, short events, Instant until) {
  while (true) {
    std::array<pollfd, 2> waits{{{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = fd, .events = events, .revents = 0}}};
    const int ready = PollUntil(waits, until);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    // WaitForStop() asks for the same descriptor.
    return fd == stop_.get() || waits[0].revents == 0;
  }
}

}  // namespace optireduce
