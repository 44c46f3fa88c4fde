// A PJRT plug-in without a device: only that part of the C API with which handlers are registered.
// A test loads a copy of the library, chooses its fault, and reads the registrations.

#include <cstddef>
#include <cstring>

namespace {

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};

struct Error {
  const char* message;
};

struct ErrorMessageArgs {
  std::size_t struct_size;
  void* extensions;
  const Error* error;
  const char* message;
  std::size_t message_size;
};

struct ErrorDestroyArgs {
  std::size_t struct_size;
  void* extensions;
  Error* error;
};

struct RegisterHandlerArgs {
  std::size_t struct_size;
  const char* target;
  std::size_t target_size;
  void* handler;
  const char* platform;
  std::size_t platform_size;
  int traits;
};

struct FfiExtension {
  Extension base;
  void* register_type_id;
  void* add_user_data;
  Error* (*register_handler)(RegisterHandlerArgs*);
};

struct Api {
  std::size_t struct_size;
  Extension* extensions;
  struct {
    std::size_t struct_size;
    void* extensions;
    int major;
    int minor;
  } version;
  void (*error_destroy)(ErrorDestroyArgs*);
  void (*error_message)(ErrorMessageArgs*);
};

enum Fault : int {
  kNone = 0,
  kNoApi = 1,
  kShortApi = 2,
  kOtherMajor = 3,
  kNoExtension = 4,
  kShortExtension = 5,
  kNoFunction = 6,
  kEndlessExtensions = 7,
  kRefusal = 8,
  kShortForeignExtension = 9,
};

}  // namespace

extern "C" {

#define EXPORT __attribute__((visibility("default")))

EXPORT int fault = kNone;
EXPORT int registrations = 0;
EXPORT int errors_alive = 0;
// The facts of each registration: target, platform, handler, size of the arguments, traits.
EXPORT char targets[8][64];
EXPORT char platforms[8][16];
EXPORT void* handlers[8];
EXPORT std::size_t sizes[8];
EXPORT int traits[8];

EXPORT const Api* GetPjrtApi();

}  // extern "C"

namespace {

Error refusal{.message = "there is a handler of this name"};

Error* Register(RegisterHandlerArgs* args) {
  if (fault == kRefusal) {
    ++errors_alive;
    return &refusal;
  }
  if (registrations >= 8 || args->target_size >= 64 || args->platform_size >= 16) return &refusal;
  std::memcpy(targets[registrations], args->target, args->target_size);
  std::memcpy(platforms[registrations], args->platform, args->platform_size);
  handlers[registrations] = args->handler;
  sizes[registrations] = args->struct_size;
  traits[registrations] = args->traits;
  ++registrations;
  return nullptr;
}

void DestroyError(ErrorDestroyArgs* args) {
  if (args->error == &refusal) --errors_alive;
}

void DescribeError(ErrorMessageArgs* args) {
  args->message = args->error->message;
  args->message_size = std::strlen(args->error->message);
}

FfiExtension ffi{.base = {.struct_size = sizeof(FfiExtension), .type = 5, .next = nullptr},
                 .register_type_id = nullptr,
                 .add_user_data = nullptr,
                 .register_handler = &Register};
// An extension of another kind, in front.
Extension other{.struct_size = sizeof(Extension), .type = 1, .next = &ffi.base};

Api api{.struct_size = sizeof(Api),
        .extensions = &other,
        .version = {.struct_size = 24, .extensions = nullptr, .major = 0, .minor = 999},
        .error_destroy = &DestroyError,
        .error_message = &DescribeError};

}  // namespace

const Api* GetPjrtApi() {
  if (fault == kNoApi) return nullptr;
  if (fault == kShortApi) api.struct_size = 16;
  if (fault == kOtherMajor) api.version.major = 1;
  if (fault == kNoExtension) other.next = nullptr;
  if (fault == kShortExtension) ffi.base.struct_size = 40;
  if (fault == kNoFunction) ffi.register_handler = nullptr;
  if (fault == kEndlessExtensions) other.next = &other;
  if (fault == kShortForeignExtension) other.struct_size = 8;
  return &api;
}
