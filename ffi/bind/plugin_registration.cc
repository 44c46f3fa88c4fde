#include "ffi/bind/plugin_registration.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <string_view>

#include "ffi/base/quoted.h"

namespace optireduce {
namespace {

// The part of the PJRT C API that a registration needs, in its layout. A structure begins with its
// size, so that newer versions can append members.
// Source: openxla/xla, xla/pjrt/c/pjrt_c_api.h and pjrt_c_api_ffi_extension.h; the layouts of
// jaxlib 0.10.2 to 0.12 and libtpu 0.0.52 (tests/accelerators).

struct PjrtError;

struct PjrtExtension {
  std::size_t struct_size;
  int type;
  const PjrtExtension* next;
};

struct PjrtErrorMessageArgs {
  std::size_t struct_size;
  void* extensions;
  const PjrtError* error;
  const char* message;  // a result, as the next
  std::size_t message_size;
};

struct PjrtErrorDestroyArgs {
  std::size_t struct_size;
  void* extensions;
  PjrtError* error;
};

struct PjrtApi {
  std::size_t struct_size;
  const PjrtExtension* extensions;
  struct {
    std::size_t struct_size;
    void* extensions;
    int major;
    int minor;
  } version;
  void (*error_destroy)(PjrtErrorDestroyArgs*);
  void (*error_message)(PjrtErrorMessageArgs*);
};

struct PjrtRegisterHandlerArgs {
  std::size_t struct_size;
  const char* target;
  std::size_t target_size;
  void* handler;
  const char* platform;
  std::size_t platform_size;
  int traits;
};

struct PjrtFfiExtension {
  PjrtExtension base;
  void* register_type_id;
  void* add_user_data;
  PjrtError* (*register_handler)(PjrtRegisterHandlerArgs*);
};

// Source: pjrt_c_api.h, PJRT_API_MAJOR: another number means other layouts.
constexpr int kPjrtMajor = 0;

// Source: pjrt_c_api.h, PJRT_Extension_Type_FFI.
constexpr int kFfiExtension = 5;

// Chosen: several times the number of kinds (about 20); a longer list is a ring.
constexpr int kExtensionsMax = 256;

// Source: pjrt_c_api.h: the size of arguments ends with their last member, without padding.
constexpr std::size_t kRegisterHandlerArgsSize =
    offsetof(PjrtRegisterHandlerArgs, traits) + sizeof(PjrtRegisterHandlerArgs::traits);

constexpr std::string_view kHostPlatform = "Host";

Status Refused(const std::string& why) { return {StatusCode::kFailedPrecondition, why}; }

std::string LastLinkerError() {
  const char* const text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

// Returns the table of the plug-in; the library is never unloaded, since XLA keeps pointers into
// it.
Result<const PjrtApi*> FindApi(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return Refused("the process has not loaded it");
  using GetPjrtApi = const PjrtApi* (*)();
  const auto get = reinterpret_cast<GetPjrtApi>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr) return Refused("it is no PJRT plug-in: " + LastLinkerError());
  const PjrtApi* const api = get();
  if (api == nullptr) return Refused("its GetPjrtApi() returns null");
  if (api->struct_size < sizeof(PjrtApi)) {
    return Refused("its PJRT_Api has " + std::to_string(api->struct_size) + " bytes, at least " +
                   std::to_string(sizeof(PjrtApi)) + " are expected");
  }
  if (api->version.major != kPjrtMajor) {
    return Refused("it has version " + std::to_string(api->version.major) + "." +
                   std::to_string(api->version.minor) + " of the PJRT C API, version " +
                   std::to_string(kPjrtMajor) + ".x is expected");
  }
  return api;
}

Result<const PjrtFfiExtension*> FindFfiExtension(const PjrtApi& api) {
  const PjrtExtension* extension = api.extensions;
  for (int i = 0; extension != nullptr; ++i, extension = extension->next) {
    if (i == kExtensionsMax) return Refused("its list of PJRT extensions has no end");
    if (extension->struct_size < sizeof(PjrtExtension)) {
      return Refused("a PJRT extension of it has " + std::to_string(extension->struct_size) +
                     " bytes, at least " + std::to_string(sizeof(PjrtExtension)) + " are expected");
    }
    if (extension->type == kFfiExtension) break;
  }
  if (extension == nullptr) return Refused("it has no PJRT extension for FFI");
  const auto* const ffi = reinterpret_cast<const PjrtFfiExtension*>(extension);
  if (extension->struct_size < sizeof(PjrtFfiExtension)) {
    return Refused("its PJRT extension for FFI has " + std::to_string(extension->struct_size) +
                   " bytes, at least " + std::to_string(sizeof(PjrtFfiExtension)) +
                   " are expected");
  }
  if (ffi->register_handler == nullptr) {
    return Refused("its PJRT extension for FFI does not register handlers");
  }
  return ffi;
}

// Returns the message of an error, and frees the error.
std::string TakeMessage(const PjrtApi& api, PjrtError* error) {
  PjrtErrorMessageArgs message{.struct_size = sizeof(PjrtErrorMessageArgs),
                               .extensions = nullptr,
                               .error = error,
                               .message = nullptr,
                               .message_size = 0};
  if (api.error_message != nullptr) api.error_message(&message);
  std::string text = "no reason given";
  if (message.message != nullptr) text.assign(message.message, message.message_size);
  PjrtErrorDestroyArgs destroy{
      .struct_size = sizeof(PjrtErrorDestroyArgs), .extensions = nullptr, .error = error};
  if (api.error_destroy != nullptr) api.error_destroy(&destroy);
  return text;
}

}  // namespace

Result<std::pair<int, int>> RegisterWithPlugin(const std::string& path,
                                               std::span<const NamedHandler> handlers) {
  Result<const PjrtApi*> api = FindApi(path);
  if (!api.ok()) return api.status();
  Result<const PjrtFfiExtension*> ffi = FindFfiExtension(*api.value());
  if (!ffi.ok()) return ffi.status();
  for (const NamedHandler& named : handlers) {
    PjrtRegisterHandlerArgs args{.struct_size = kRegisterHandlerArgsSize,
                                 .target = named.target,
                                 .target_size = std::strlen(named.target),
                                 .handler = reinterpret_cast<void*>(named.handler),
                                 .platform = kHostPlatform.data(),
                                 .platform_size = kHostPlatform.size(),
                                 .traits = 0};
    if (PjrtError* const error = ffi.value()->register_handler(&args); error != nullptr) {
      return Refused("it refuses the handler " + Quoted(named.target) + ": " +
                     TakeMessage(*api.value(), error));
    }
  }
  return std::pair(api.value()->version.major, api.value()->version.minor);
}

}  // namespace optireduce
