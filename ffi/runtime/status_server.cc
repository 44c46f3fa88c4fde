#include "ffi/runtime/status_server.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "ffi/net/clock.h"

namespace optireduce {
namespace {

// Longest time for a client to read its report.
// Chosen: a report has some hundred kilobytes at most; one that does not read delays the others.
constexpr Duration kSendMax = std::chrono::seconds(1);

// Pause after each client.
// Chosen: 20 reports a second bound the time that a client can take from a lane.
constexpr Duration kPause = std::chrono::milliseconds(50);

}  // namespace

Result<std::unique_ptr<StatusServer>> StatusServer::Start(const std::string& folder,
                                                          const std::string& name,
                                                          ReportFunction report) {
  Result<std::unique_ptr<LocalSocket>> socket = LocalSocket::Open(folder, name);
  if (!socket.ok()) return socket.status();
  return std::unique_ptr<StatusServer>(
      new StatusServer(std::move(socket.value()), std::move(report)));
}

StatusServer::StatusServer(std::unique_ptr<LocalSocket> socket, ReportFunction report)
    : socket_(std::move(socket)), report_(std::move(report)), thread_([this] { Run(); }) {}

StatusServer::~StatusServer() {
  Stop();
  thread_.join();
}

void StatusServer::Run() {
  do {
    const std::optional<Descriptor> client = socket_->Accept();
    if (!client) continue;
    try {
      socket_->Send(*client, report_(), ClockNow() + kSendMax);
    } catch (const std::exception&) {
      // Out of memory. The client gets no report, and the process goes on.
    }
  } while (!socket_->WaitForStop(ClockNow() + kPause));
}

}  // namespace optireduce
