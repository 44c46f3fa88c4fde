// The handlers of the allreduce, with XLA's C interface.

#ifndef FFI_BIND_XLA_ALLREDUCE_H_
#define FFI_BIND_XLA_ALLREDUCE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ffi/base/status.h"
#include "ffi/runtime/communicator_options.h"
#include "ffi/runtime/device_rendezvous.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace optireduce {

// The attributes of a call, as views into the call frame: valid until the handler returns.
struct CallAttributes {
  std::string_view communicator;
  std::string_view name;
  std::string_view key;
  std::string_view description;
  std::string_view operation;
  std::string_view mode;
  std::string_view wire_format;
  std::int64_t fingerprint = 0;
  xla::ffi::Span<const std::int32_t> group_processes;
  std::int64_t group_size = 0;
  std::int64_t drain = 0;
  bool averages = false;
  // The quorum of an all_gather that drops late data (see Quorum): the cluster of each rank of a
  // group. Empty: no quorum.
  xla::ffi::Span<const std::int32_t> clusters;
  std::int64_t spare = 0;
};

// Reads a call, without its leaves.
Status ReadCall(const CallAttributes& attributes, xla::ffi::BufferR1<xla::ffi::S32> group_rank,
                xla::ffi::BufferR0<xla::ffi::S32> step, const CommunicatorOptions& options,
                DeviceCall& call);

// Checks leaf `i`; the first leaf sets the dtype.
Status CheckLeaf(std::string_view name, std::size_t i, const xla::ffi::AnyBuffer& in,
                 CollectiveSpec& spec);

// Checks the size of a bucket with one stage. It has a block for each rank of the group, in the
// order of the processes: the blocks of a process are its shard.
Status CheckBlocks(const CallAttributes& attributes, const DeviceCall& call);

// The float array of a call's statistics, if the last result is one, otherwise null.
float* StatsOf(xla::ffi::RemainingRets results);
void WriteStats(const DeviceResult& result, std::size_t processes, float* stats);

// Sums leaves over the ranks of a group, in place. Platform "cpu"; returns a future.
//   operands:   group and rank in it s32[2]; step s32[] (-1: the calls are counted); leaves...
//   results:    leaves..., each aliased to its operand; the statistics of the call, f32, see
//               kStatistics
//   attributes: communicator, name, key (the name without the part that distinguishes calls of one
//               program with the same name), description, mode ("exact", "agreed", "bounded" or
//               "lossy"): strings; fingerprint i64; group_processes i32 array, row-major [groups,
//               group_size], the process of each rank of each group; group_size i64; drain i64
//               (0: no; 1: of calls that were made; 2: of calls that may have been made); clusters
//               i32 array, one for each rank of a group or empty, and spare i64: see Quorum
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

}  // namespace optireduce

// The members of CallAttributes, in the order of the fields.
#define OPTIREDUCE_CALL_ATTRIBUTES                                                              \
  StructMember<std::string_view>("communicator"), StructMember<std::string_view>("name"),       \
      StructMember<std::string_view>("key"), StructMember<std::string_view>("description"),     \
      StructMember<std::string_view>("operation"), StructMember<std::string_view>("mode"),      \
      StructMember<std::string_view>("wire_format"), StructMember<std::int64_t>("fingerprint"), \
      StructMember<Span<const std::int32_t>>("group_processes"),                                \
      StructMember<std::int64_t>("group_size"), StructMember<std::int64_t>("drain"),            \
      StructMember<bool>("averages"), StructMember<Span<const std::int32_t>>("clusters"),       \
      StructMember<std::int64_t>("spare")

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(optireduce::CallAttributes, OPTIREDUCE_CALL_ATTRIBUTES);

#endif  // FFI_BIND_XLA_ALLREDUCE_H_
