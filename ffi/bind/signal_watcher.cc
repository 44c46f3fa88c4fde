#include "ffi/bind/signal_watcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace optireduce {

Result<std::unique_ptr<SignalWatcher>> SignalWatcher::Create(int fd,
                                                             std::function<void(int)> on_signal) {
  if (fcntl(fd, F_GETFD) < 0) {
    return Status(
        StatusCode::kInvalidArgument,
        "expected the reading end of the socket pair given to signal.set_wakeup_fd(), got " +
            std::to_string(fd) + ": " + std::strerror(errno) + ".");
  }
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) {
    return Status(StatusCode::kResourceExhausted,
                  std::string("cannot open an eventfd: ") + std::strerror(errno) + ".");
  }
  return std::unique_ptr<SignalWatcher>(new SignalWatcher(fd, stop_fd, std::move(on_signal)));
}

SignalWatcher::SignalWatcher(int fd, int stop_fd, std::function<void(int)> on_signal)
    : fd_(fd), stop_fd_(stop_fd), on_signal_(std::move(on_signal)), thread_([this] { Run(); }) {}

SignalWatcher::~SignalWatcher() {
  const std::uint64_t one = 1;
  // Cannot fail: the counter of the eventfd is 0.
  [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(stop_fd_);
}

void SignalWatcher::Run() {
  std::array<pollfd, 2> waited = {pollfd{.fd = fd_, .events = POLLIN, .revents = 0},
                                  pollfd{.fd = stop_fd_, .events = POLLIN, .revents = 0}};
  const auto again = [] { return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK; };
  while (true) {
    if (poll(waited.data(), waited.size(), -1) < 0) {
      if (again()) continue;
      return;
    }
    if (waited[1].revents != 0) return;
    std::array<unsigned char, 64> signals{};
    const ssize_t count = read(fd_, signals.data(), signals.size());
    if (count == 0 || (count < 0 && !again())) return;  // The other end was closed.
    for (ssize_t i = 0; i < count; ++i) on_signal_(signals[static_cast<std::size_t>(i)]);
  }
}

}  // namespace optireduce
