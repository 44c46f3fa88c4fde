// The communicators by name. Compiled programs refer to a communicator by a string, never by a
// pointer: they are cached across restarts of the process.
//
// The only process-wide state of the project: XLA calls a handler with its operands and attributes
// only.

#ifndef FFI_BIND_REGISTRY_H_
#define FFI_BIND_REGISTRY_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/bind/failures.h"
#include "ffi/runtime/communicator.h"
#include "ffi/runtime/completion_pool.h"

namespace optireduce {

// Thread-safe.
class Registry {
 public:
  // Never destroyed: at exit, threads of XLA may still be inside a handler.
  static Registry& Global();

  // Creates a communicator and registers it under its name, which must be free.
  Result<std::shared_ptr<Communicator>> Open(const CommunicatorOptions& options);
  // Gives an open communicator another name, under which programs find it from now on in place of
  // the one that had it.
  void Rename(const std::shared_ptr<Communicator>& communicator, const std::string& name);
  // Closes a communicator and frees its name. No-op if it was closed before.
  void Close(const std::shared_ptr<Communicator>& communicator, const std::string& reason);

  // The error explains how to open one.
  Result<std::shared_ptr<Communicator>> Find(std::string_view name) const;
  // The communicators of this process. A forked process has none: those are its parent's.
  std::vector<std::shared_ptr<Communicator>> All() const;

  // Closes all communicators and keeps their names: later submissions fail with `reason`.
  void CloseAll(const std::string& reason);

  // The failures of all communicators, also of those that are closed.
  Failures& failures() { return failures_; }

 private:
  Registry();

  // Completes the calls of all communicators, and outlives them.
  const std::shared_ptr<CompletionPool> pool_;
  Failures failures_;
  std::atomic<pid_t> process_ = 0;  // the process that has opened the communicators
  mutable std::mutex mutex_;        // guards the following members
  std::map<std::string, std::shared_ptr<Communicator>, std::less<>> communicators_;
};

}  // namespace optireduce

#endif  // FFI_BIND_REGISTRY_H_
