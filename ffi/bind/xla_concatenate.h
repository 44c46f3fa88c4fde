// The handler that joins arrays into one bucket, with XLA's C interface.

#ifndef FFI_BIND_XLA_CONCATENATE_H_
#define FFI_BIND_XLA_CONCATENATE_H_

#include "xla/ffi/api/c_api.h"

namespace optireduce {

// Platform "cpu".
//   operands:   one or more [rows, n_i], all of one dtype
//   results:    [rows, sum of n_i] of that dtype
XLA_FFI_Error* ConcatenateHandler(XLA_FFI_CallFrame* call_frame);

}  // namespace optireduce

#endif  // FFI_BIND_XLA_CONCATENATE_H_
