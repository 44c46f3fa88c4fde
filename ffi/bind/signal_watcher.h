// Reads signal numbers from a descriptor, on a thread of its own.
//
// Python handles a signal only between two bytecodes of the main thread, and that thread may be
// inside a call that waits for a collective. But Python's C handler writes the number to a
// descriptor immediately (signal.set_wakeup_fd), and a reader of it can end that wait.

#ifndef FFI_BIND_SIGNAL_WATCHER_H_
#define FFI_BIND_SIGNAL_WATCHER_H_

#include <functional>
#include <memory>
#include <thread>

#include "ffi/base/status.h"

namespace optireduce {

class SignalWatcher {
 public:
  // Calls `on_signal` with every byte read from `fd`, on the watcher's thread. The caller keeps
  // `fd`, and must not close it before the watcher is destroyed.
  static Result<std::unique_ptr<SignalWatcher>> Create(int fd, std::function<void(int)> on_signal);
  // Waits for a running call of `on_signal`.
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  SignalWatcher(int fd, int stop_fd, std::function<void(int)> on_signal);
  void Run();

  const int fd_;
  const int stop_fd_;  // an eventfd; readable when the thread is to end
  const std::function<void(int)> on_signal_;
  std::thread thread_;
};

}  // namespace optireduce

#endif  // FFI_BIND_SIGNAL_WATCHER_H_
