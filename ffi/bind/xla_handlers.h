// The handlers of custom calls, with XLA's C interface. Platform "cpu".

#ifndef FFI_BIND_XLA_HANDLERS_H_
#define FFI_BIND_XLA_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

namespace optireduce {

// Sums leaves over the ranks of a group, in place. Returns a future.
//   operands:   group and rank in it s32[2]; step s32[] (-1: the calls are counted); leaves...
//   results:    leaves..., each aliased to its operand; the statistics of the call, f32, see
//               kStatistics
//   attributes: communicator, name, key (the name without the part that distinguishes calls of one
//               program with the same name), description, mode ("exact", "agreed", "bounded" or
//               "lossy"): strings; fingerprint i64; group_processes i32 array, row-major [groups,
//               group_size], the process of each rank of each group; group_size i64; drain i64
//               (0: no; 1: of calls that were made; 2: of calls that may have been made); pairs
//               bool: two successive floats are an element; clusters i32 array, one for each rank
//               of a group or empty, and spare i64: see Quorum
// Leaves are of one dtype: float32, bfloat16, float16, float64, int32, complex64 or complex128.
// Modes, statistics and the limit of a name: ffi/bind/call_facts.h.
XLA_FFI_Error* AllReduceHandler(XLA_FFI_CallFrame* call_frame);

// Takes the sequence of a name's next allreduce, for a program that needs it before the call.
//   operands:   group and rank in it s32[2]; the operand of the allreduce, so that a call that
//               depends on an earlier one of the same name takes its number after that one
//   results:    s32[]; the operand of the allreduce, unchanged and aliased: later operations may
//               overwrite it, since it has no other reader
//   attributes: communicator, name: strings
XLA_FFI_Error* SequenceHandler(XLA_FFI_CallFrame* call_frame);

// Begins an allreduce and returns; the leaves are copied.
//   operands:   as those of the allreduce
//   results:    the token, s32[kTokenElements]
//   attributes: those of the allreduce; salt i64, whose low 32 bits are a hash of the name
XLA_FFI_Error* BeginHandler(XLA_FFI_CallFrame* call_frame);

// Waits for a begun allreduce. Returns a future.
//   operands:   group and rank in it s32[2]; the token; any others, which have no effect
//   results:    leaves...; the statistics of the call, f32, as those of the allreduce. The token
//               of no call gives leaves of zeros.
//   attributes: communicator: string
XLA_FFI_Error* EndHandler(XLA_FFI_CallFrame* call_frame);

// Joins arrays into one bucket.
//   operands:   one or more [rows, n_i], all of one dtype
//   results:    [rows, sum of n_i] of that dtype
XLA_FFI_Error* ConcatenateHandler(XLA_FFI_CallFrame* call_frame);

// HadamardEncode and HadamardDecode.
//   operands:   key u32[]; decode only: scale f32[]; bucket f32[n] or f64[n]
//   results:    bucket, aliased to its operand
XLA_FFI_Error* HadamardEncodeHandler(XLA_FFI_CallFrame* call_frame);
XLA_FFI_Error* HadamardDecodeHandler(XLA_FFI_CallFrame* call_frame);

}  // namespace optireduce

#endif  // FFI_BIND_XLA_HANDLERS_H_
