// Registers handlers with a PJRT plug-in (GPU, TPU). Its compiler makes a call of ours part of a
// host computation: code for the host processor, inside the plug-in. XLA looks the handlers of such
// calls up in the plug-in's own table, under the platform "Host". `jax.ffi` fills other tables;
// this one is reached through an extension of the PJRT C API.

#ifndef FFI_BIND_PLUGIN_REGISTRATION_H_
#define FFI_BIND_PLUGIN_REGISTRATION_H_

#include <span>
#include <string>
#include <utility>

#include "ffi/base/status.h"
#include "xla/ffi/api/c_api.h"

namespace optireduce {

// A handler and the name of its custom call.
struct NamedHandler {
  const char* target;
  XLA_FFI_Handler* handler;
};

// Registers host handlers with the plug-in in the file `path`, which stays in the process. The
// program must have loaded it: a second copy of a plug-in would have another table. Returns the
// version (major, minor) of its PJRT C API.
//
// An error gives the reason: no such library is loaded, it is no plug-in, it has another major
// version or no FFI extension, or it refuses a handler. Calls must then not be compiled for it: the
// GPU compiler ends the process at a call without a handler.
Result<std::pair<int, int>> RegisterWithPlugin(const std::string& path,
                                               std::span<const NamedHandler> handlers);

}  // namespace optireduce

#endif  // FFI_BIND_PLUGIN_REGISTRATION_H_
