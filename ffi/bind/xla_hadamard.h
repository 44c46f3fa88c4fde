// The handlers of the rotation, with XLA's C interface.

#ifndef FFI_BIND_XLA_HADAMARD_H_
#define FFI_BIND_XLA_HADAMARD_H_

#include "xla/ffi/api/c_api.h"

namespace optireduce {

// HadamardEncode and HadamardDecode. Platform "cpu".
//   operands:   key u32[]; decode only: scale f32[]; bucket f32[n] or f64[n]
//   results:    bucket, aliased to its operand
XLA_FFI_Error* HadamardEncodeHandler(XLA_FFI_CallFrame* call_frame);
XLA_FFI_Error* HadamardDecodeHandler(XLA_FFI_CallFrame* call_frame);

}  // namespace optireduce

#endif  // FFI_BIND_XLA_HADAMARD_H_
