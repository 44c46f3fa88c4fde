// A finding of a part of an endpoint about an open call. A part ends no call: it returns verdicts,
// and CallLifecycle applies them.

#ifndef FFI_PROTOCOL_SESSION_VERDICT_H_
#define FFI_PROTOCOL_SESSION_VERDICT_H_

#include "ffi/base/ids.h"
#include "ffi/base/status.h"

namespace optireduce {

struct Verdict {
  CallId call;
  Status why{};  // the error with which it ends; ok: it may be complete, or nothing of it be left
  // No member that is left makes the call, nor does the program: all of it is discarded.
  bool discard = false;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_VERDICT_H_
