// A thread that answers each connection to a local socket with the state of this process. It needs
// neither Python nor XLA, so it answers while a program waits or computes.

#ifndef FFI_RUNTIME_STATUS_SERVER_H_
#define FFI_RUNTIME_STATUS_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "ffi/base/status.h"
#include "ffi/net/local_socket.h"

namespace optireduce {

class StatusServer {
 public:
  // Called on the server's thread, for one client at a time.
  using ReportFunction = std::function<std::string()>;

  static Result<std::unique_ptr<StatusServer>> Start(const std::string& folder,
                                                     const std::string& name,
                                                     ReportFunction report);
  // Stops, and waits for a report that is being made.
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  // Answers no more; does not wait. May be repeated.
  void Stop() { socket_->Stop(); }

 private:
  StatusServer(std::unique_ptr<LocalSocket> socket, ReportFunction report);
  void Run();

  const std::unique_ptr<LocalSocket> socket_;
  const ReportFunction report_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_STATUS_SERVER_H_
