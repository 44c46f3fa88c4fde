// The parts that all ways of an allreduce from a program have in common: its attributes, and their
// checks; its statistics.

#ifndef FFI_BIND_XLA_ALLREDUCE_H_
#define FFI_BIND_XLA_ALLREDUCE_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>

#include "ffi/base/status.h"
#include "ffi/bind/status_encoding.h"
#include "ffi/runtime/communicator.h"
#include "ffi/runtime/device_rendezvous.h"
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
  // Whether two successive values of a leaf are one element, which no datagram divides.
  bool pairs = false;
  // The quorum of an all_gather that drops late data (see Quorum): the cluster of each rank of a
  // group. Empty: no quorum.
  xla::ffi::Span<const std::int32_t> clusters;
  std::int64_t spare = 0;
};

// Reads a call, without its leaves. `group_rank` is the group and the rank in it; `step` -1 has the
// calls counted.
Status ReadCall(const CallAttributes& attributes, std::span<const std::int32_t> group_rank,
                std::int32_t step, const Communicator& communicator, DeviceCall& call);

// Reads argument `i` as a leaf, and adds its elements to the collective; the first leaf sets the
// dtype.
Result<xla::ffi::AnyBuffer> ReadLeaf(const CallAttributes& attributes,
                                     xla::ffi::RemainingArgs arguments, std::size_t i,
                                     CollectiveSpec& spec);

// The number of elements of a leaf that was read.
std::uint64_t ElementsOf(const CallAttributes& attributes, const xla::ffi::AnyBuffer& leaf);

// Checks a call with its leaves, and starts it.
Status StartCall(const CallAttributes& attributes, Communicator& communicator, DeviceCall call);

// The float array of a call's statistics, if the last result is one, otherwise null.
float* StatsOf(xla::ffi::RemainingRets results);
void WriteStats(const DeviceResult& result, std::size_t processes, float* stats);
// Writes the statistics and ends the future of a call. May run the rest of the program on this
// thread.
void EndFuture(xla::ffi::Promise& promise, const DeviceResult& result, std::size_t processes,
               float* stats);

// The outcome of `function`, with its exceptions.
template <typename Function>
Status StatusOf(Function function) try {
  return function();
} catch (const std::exception& unexpected) {
  return Status(StatusCode::kInternal, unexpected.what());
}

// The outcome of a handler that does not wait.
template <typename Function>
xla::ffi::Error ErrorOf(Function function) {
  const Status status = StatusOf(function);
  return status.ok() ? xla::ffi::Error::Success() : EncodeError(status);
}

// The future of a call that `start(promise)` starts, or of its error.
template <typename Start>
xla::ffi::Future FutureOf(Start start) {
  xla::ffi::Promise promise;
  xla::ffi::Future future(promise);
  const Status status = StatusOf([&] { return start(promise); });
  // XLA has not received the future yet, so nothing of the program can run in this call.
  if (!status.ok()) promise.SetError(EncodeError(status));
  return future;
}

}  // namespace optireduce

// The members of CallAttributes, in the order of the fields.
#define OPTIREDUCE_CALL_ATTRIBUTES                                                              \
  StructMember<std::string_view>("communicator"), StructMember<std::string_view>("name"),       \
      StructMember<std::string_view>("key"), StructMember<std::string_view>("description"),     \
      StructMember<std::string_view>("operation"), StructMember<std::string_view>("mode"),      \
      StructMember<std::string_view>("wire_format"), StructMember<std::int64_t>("fingerprint"), \
      StructMember<Span<const std::int32_t>>("group_processes"),                                \
      StructMember<std::int64_t>("group_size"), StructMember<std::int64_t>("drain"),            \
      StructMember<bool>("averages"), StructMember<bool>("pairs"),                              \
      StructMember<Span<const std::int32_t>>("clusters"), StructMember<std::int64_t>("spare")

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(optireduce::CallAttributes, OPTIREDUCE_CALL_ATTRIBUTES);

#endif  // FFI_BIND_XLA_ALLREDUCE_H_
