// A UNIX socket for the processes of one user: in a folder and with permissions that exclude the
// others.

#ifndef FFI_NET_LOCAL_SOCKET_H_
#define FFI_NET_LOCAL_SOCKET_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/net/socket.h"

namespace optireduce {

class LocalSocket {
 public:
  // Creates the folder, whose parent exists, for this user alone (0700), and the socket `name` in
  // it (0600). An error for a folder of another user, or one that others can enter: a name in a
  // folder for temporary files may be taken. A socket of this name is replaced.
  static Result<std::unique_ptr<LocalSocket>> Open(const std::string& folder,
                                                   const std::string& name);
  // Removes the socket, unless in a forked process, which shares that of its parent.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  // Blocks until a process of this user or of root connects; others are refused. Nothing after
  // Stop(), and nothing if the kernel refuses the connection.
  std::optional<Descriptor> Accept();
  // False if the client has not taken all of the text before `until`, or Stop() comes first.
  bool Send(const Descriptor& client, std::string_view text, Instant until);
  // Blocks until Stop(); false if `until` comes first.
  bool WaitForStop(Instant until);

  // Ends the waits of the functions above, for good. For any thread.
  void Stop();

 private:
  LocalSocket(Descriptor folder, Descriptor listener, Descriptor stop, std::string name);
  // Waits for events of `fd`. False after Stop(), or at `until`.
  bool WaitFor(int fd, short events, Instant until);

  const pid_t process_;
  const Descriptor folder_;
  const Descriptor listener_;
  const Descriptor stop_;
  const std::string name_;
};

}  // namespace optireduce

#endif  // FFI_NET_LOCAL_SOCKET_H_
