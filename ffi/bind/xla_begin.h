// The handlers of calls in two steps, with XLA's C interface.

#ifndef FFI_BIND_XLA_BEGIN_H_
#define FFI_BIND_XLA_BEGIN_H_

#include <cstddef>

#include "xla/ffi/api/c_api.h"

namespace optireduce {

// Elements of the token of a begun call, s32: the session, the collective (the attribute `salt`),
// the number of the call among the begun ones of its device, the step (-1: the call was counted).
// Equal on all devices of a call. All elements 0: the token of no call.
inline constexpr std::size_t kTokenElements = 4;

// Begins an allreduce and returns; the leaves are copied. Platform "cpu".
//   operands:   as those of the allreduce: see xla_allreduce.h
//   results:    the token, s32[kTokenElements]
//   attributes: those of the allreduce; salt i64, whose low 32 bits are a hash of the name
XLA_FFI_Error* BeginHandler(XLA_FFI_CallFrame* call_frame);

// Waits for a begun allreduce. Platform "cpu"; returns a future.
//   operands:   group and rank in it s32[2]; the token; any others, which have no effect
//   results:    leaves...; the statistics of the call, f32, as those of the allreduce. The token
//               of no call gives leaves of zeros.
//   attributes: communicator: string
XLA_FFI_Error* EndHandler(XLA_FFI_CallFrame* call_frame);

}  // namespace optireduce

#endif  // FFI_BIND_XLA_BEGIN_H_
