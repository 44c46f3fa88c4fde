#include "ffi/bind/termination.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "ffi/net/clock.h"

namespace optireduce {
namespace {

// Limit of the time until the main thread notices the signal.
// Chosen: its waiting calls end 1 s after the signal (Lane::Close); launchers send SIGKILL after
// 5 s (ours) to 30 s (SLURM, Kubernetes).
constexpr Duration kNoticeLimit = std::chrono::seconds(3);

// All state that the signal handler accesses. Never destroyed: the signal may come at any time.
struct State {
  // Written before the handler is installed, only read afterwards.
  struct sigaction previous_handler{};
  struct sigaction python_handler{};
  pid_t process = 0;
  pthread_t main_thread{};
  int wake_fd = -1;  // an eventfd
  bool ends = false;
  std::atomic<bool> forwards = false;    // see ForwardToPreviousHandler()
  std::atomic<bool> interrupts = false;  // see InterruptMainThread()
  std::atomic<std::uint32_t> received = 0;
  std::atomic<std::uint32_t> handled = 0;  // the number of received signals that are handled

  std::function<void()> on_signal;
  std::mutex mutex;         // guards the following members
  Instant end_at = kNever;  // see EndWithin()
};

State& Global() {
  static State* const state = new State;
  return *state;
}

State* installed = nullptr;  // the state for the signal handler, which may not call Global()

void Default(int number) {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(number, &action, nullptr);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  kill(getpid(), number);
}

void Call(const struct sigaction& action, int number, siginfo_t* info, void* context) {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(number, info, context);
  } else if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
    action.sa_handler(number);
  }
}

void Wake(const State& state) {
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the descriptor is readable as well.
  [[maybe_unused]] const ssize_t written = write(state.wake_fd, &one, sizeof(one));
}

// Python handles a signal in its main thread, which may sleep, while the system gave the signal to
// another: as it may to a process that was stopped. A second signal ends the sleep, no more.
void InterruptMainThread(State& state, int number) {
  if (getpid() != state.process || pthread_equal(pthread_self(), state.main_thread) != 0) return;
  state.interrupts = true;
  pthread_kill(state.main_thread, number);
}

// The signal handler: async-signal-safe calls only.
void OnSignal(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  State& state = *installed;
  // That of InterruptMainThread(): another thread has handled the first one.
  if (pthread_equal(pthread_self(), state.main_thread) != 0 && state.interrupts.exchange(false)) {
    return;
  }
  if (state.ends && getpid() != state.process) {
    // A forked process, such as a worker that loads data: the session belongs to its parent.
    Default(number);
  } else {
    // Not called otherwise: JAX would then wait for the other processes at the end of this one.
    if (state.forwards) Call(state.previous_handler, number, info, context);
    if (state.ends && !state.forwards) {
      ++state.received;
      Wake(state);
    }
    if (!state.ends || !state.forwards) {
      Call(state.python_handler, number, info, context);
      InterruptMainThread(state, number);
    }
  }
  errno = saved_errno;
}

void EndNow() {
  static constexpr char kText[] =
      "jax_optireduce: the main thread has not ended this process; SIGTERM ends it now.\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  Default(SIGTERM);
}

void WaitForSignals(State& state) {
  std::uint32_t seen = 0;
  Instant notice_by = kNever;
  while (true) {
    Instant due = notice_by;
    {
      const std::lock_guard lock(state.mutex);
      due = std::min(due, state.end_at);
    }
    const Instant now = ClockNow();
    if (now >= due) {
      if (now < notice_by || state.handled < seen) EndNow();
      notice_by = kNever;
      continue;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - now);
    pollfd waited = {.fd = state.wake_fd, .events = POLLIN, .revents = 0};
    poll(&waited, 1, due == kNever ? -1 : static_cast<int>(std::min<long>(left.count(), 60'000)));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t bytes = read(state.wake_fd, &count, sizeof(count));
    if (state.received == seen) continue;
    seen = state.received;
    notice_by = ClockNow() + kNoticeLimit;
    state.on_signal();
  }
}

}  // namespace

Status ChainTermination(const std::function<void()>& install, std::function<void()> on_signal) {
  State& state = Global();
  if (installed != nullptr) return Status();
  state.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (state.wake_fd < 0) {
    return Status(StatusCode::kResourceExhausted,
                  std::string("cannot open an eventfd: ") + std::strerror(errno) + ".");
  }
  sigaction(SIGTERM, nullptr, &state.previous_handler);
  install();
  sigaction(SIGTERM, nullptr, &state.python_handler);
  state.process = getpid();
  state.main_thread = pthread_self();
  state.ends = on_signal != nullptr;
  state.on_signal = std::move(on_signal);
  installed = &state;
  if (state.ends) std::thread([&state] { WaitForSignals(state); }).detach();
  struct sigaction action{};
  action.sa_sigaction = &OnSignal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  return Status();
}

void ForwardToPreviousHandler() { Global().forwards = true; }

void TerminationHandled() { Global().handled = Global().received.load(); }

void EndWithin(Duration limit) {
  State& state = Global();
  if (installed == nullptr) return;
  {
    const std::lock_guard lock(state.mutex);
    state.end_at = ClockNow() + limit;
  }
  Wake(state);
}

void ExitWith(int code) {
  static std::atomic<int> exit_code;
  exit_code = code;
  // The last registered handler of exit(3) is the first to run.
  std::atexit([] {
    std::fflush(nullptr);
    _exit(exit_code);
  });
}

}  // namespace optireduce
