// The handlers of the allreduce, with XLA's C interface.

#ifndef FFI_BIND_XLA_ALLREDUCE_H_
#define FFI_BIND_XLA_ALLREDUCE_H_

#include "xla/ffi/api/c_api.h"

namespace optireduce {

// Sums leaves over the ranks of a group, in place. Platform "cpu"; returns a future.
//   operands:   group and rank in it s32[2]; step s32[] (-1: the calls are counted); leaves...
//   results:    leaves..., each aliased to its operand; the statistics of the call, f32, see
//               kStatistics
//   attributes: communicator, name, key (the name without the part that distinguishes calls of one
//               program with the same name), description, mode ("exact", "agreed", "bounded" or
//               "lossy"): strings; fingerprint i64; group_processes i32 array, row-major [groups,
//               group_size], the process of each rank of each group; group_size i64; drain i64
//               (0: no; 1: of calls that were made; 2: of calls that may have been made)
// Leaves are of one dtype: float32, bfloat16, float16, float64 or int32.
// Modes, statistics and the limit of a name: ffi/bind/call_facts.h.
XLA_FFI_Error* AllReduceHandler(XLA_FFI_CallFrame* call_frame);

// Takes the sequence of a name's next allreduce, for a program that needs it before the call.
//   operands:   group and rank in it s32[2]; the operand of the allreduce, so that a call that
//               depends on an earlier one of the same name takes its number after that one
//   results:    s32[]; the operand of the allreduce, unchanged and aliased: later operations may
//               overwrite it, since it has no other reader
//   attributes: communicator, name: strings
XLA_FFI_Error* SequenceHandler(XLA_FFI_CallFrame* call_frame);

}  // namespace optireduce

#endif  // FFI_BIND_XLA_ALLREDUCE_H_
