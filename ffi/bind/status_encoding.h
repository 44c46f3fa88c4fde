// Conversion of a Status to an XLA error. The codes are equal to XLA's, so it needs no table.

#ifndef FFI_BIND_STATUS_ENCODING_H_
#define FFI_BIND_STATUS_ENCODING_H_

#include <string>
#include <string_view>
#include <utility>

#include "ffi/base/status.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace optireduce {

#define OPTIREDUCE_SAME_CODE(ours, theirs) \
  static_assert(static_cast<int>(StatusCode::ours) == XLA_FFI_Error_Code_##theirs)
OPTIREDUCE_SAME_CODE(kOk, OK);
OPTIREDUCE_SAME_CODE(kCancelled, CANCELLED);
OPTIREDUCE_SAME_CODE(kInvalidArgument, INVALID_ARGUMENT);
OPTIREDUCE_SAME_CODE(kDeadlineExceeded, DEADLINE_EXCEEDED);
OPTIREDUCE_SAME_CODE(kResourceExhausted, RESOURCE_EXHAUSTED);
OPTIREDUCE_SAME_CODE(kFailedPrecondition, FAILED_PRECONDITION);
OPTIREDUCE_SAME_CODE(kAborted, ABORTED);
OPTIREDUCE_SAME_CODE(kInternal, INTERNAL);
OPTIREDUCE_SAME_CODE(kUnavailable, UNAVAILABLE);
#undef OPTIREDUCE_SAME_CODE

// `status` must not be ok. The prefix names the author of the advice within a long XLA error.
inline xla::ffi::Error EncodeError(const Status& status) {
  constexpr std::string_view kPrefix = "jax_optireduce: ";
  std::string message = status.message();
  if (!message.starts_with(kPrefix)) message.insert(0, kPrefix);
  return xla::ffi::Error(static_cast<xla::ffi::ErrorCode>(status.code()), std::move(message));
}

}  // namespace optireduce

#endif  // FFI_BIND_STATUS_ENCODING_H_
