#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/quoted.h"
#include "ffi/base/status.h"
#include "ffi/bind/call_facts.h"
#include "ffi/bind/registry.h"
#include "ffi/bind/xla_allreduce.h"
#include "ffi/bind/xla_handlers.h"
#include "ffi/runtime/begun_calls.h"
#include "ffi/runtime/communicator.h"
#include "xla/ffi/api/ffi.h"

namespace optireduce {

struct BeginAttributes : CallAttributes {
  std::int64_t salt = 0;
};

}  // namespace optireduce

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(optireduce::BeginAttributes, OPTIREDUCE_CALL_ATTRIBUTES,
                                      StructMember<std::int64_t>("salt"));

namespace optireduce {
namespace {

namespace ffi = xla::ffi;

// Positions in a token.
constexpr std::size_t kSession = 0;
constexpr std::size_t kCollective = 1;
constexpr std::size_t kNumber = 2;
constexpr std::size_t kStep = 3;

// The session in a token; not 0, which is the session of no call.
std::int32_t SessionOf(const Communicator& communicator) {
  return std::bit_cast<std::int32_t>(communicator.options().session | 1U);
}

Status StartBegin(const BeginAttributes& attributes, ffi::BufferR1<ffi::S32> group_rank,
                  ffi::BufferR0<ffi::S32> step, ffi::RemainingArgs arguments,
                  ffi::BufferR1<ffi::S32> token) {
  Result<std::shared_ptr<Communicator>> found = Registry::Global().Find(attributes.communicator);
  if (!found.ok()) return found.status();
  Communicator& communicator = *found.value();
  DeviceCall call;
  Status read = ReadCall(attributes, {group_rank.typed_data(), group_rank.element_count()},
                         *step.typed_data(), communicator, call);
  if (!read.ok()) return read;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    Result<ffi::AnyBuffer> leaf = ReadLeaf(attributes, arguments, i, call.spec);
    if (!leaf.ok()) return leaf.status();
    const std::uint64_t elements = ElementsOf(attributes, leaf.value());
    if (elements == 0) continue;
    call.leaves.push_back(
        {.data = static_cast<std::byte*>(leaf.value().untyped_data()), .elements = elements});
  }
  if (token.element_count() != kTokenElements) {
    return InvalidArgument("the result of " + Quoted(attributes.name) + " must be a token.");
  }
  const BegunCallsOf of{.collective = static_cast<std::uint32_t>(attributes.salt & 0xFFFFFFFF),
                        .group = call.group,
                        .rank = call.rank};
  Result<std::uint32_t> number = communicator.begun_calls().Begin(of, call);
  if (!number.ok()) return number.status();
  std::int32_t* const numbers = token.typed_data();
  numbers[kSession] = SessionOf(communicator);
  numbers[kCollective] = std::bit_cast<std::int32_t>(of.collective);
  numbers[kNumber] = std::bit_cast<std::int32_t>(number.value());
  numbers[kStep] = *step.typed_data();
  Registry::Global().failures().Watch(call);
  communicator.Start(std::move(call));
  return Status();
}

ffi::Error Begin(const BeginAttributes& attributes, ffi::BufferR1<ffi::S32> group_rank,
                 ffi::BufferR0<ffi::S32> step, ffi::RemainingArgs arguments,
                 ffi::Result<ffi::BufferR1<ffi::S32>> token) {
  return ErrorOf([&] { return StartBegin(attributes, group_rank, step, arguments, *token); });
}

// The memory of the results, but the statistics: valid until the end of the call.
Result<std::vector<std::span<std::byte>>> LeavesOf(ffi::RemainingRets results) {
  std::vector<std::span<std::byte>> leaves;
  for (std::size_t i = 0; i + 1 < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!result.has_value()) {
      return InvalidArgument("result " + std::to_string(i) + " of end() is not an array.");
    }
    ffi::AnyBuffer buffer = **result;
    leaves.emplace_back(static_cast<std::byte*>(buffer.untyped_data()), buffer.size_bytes());
  }
  return leaves;
}

Status StartEnd(std::string_view name, ffi::BufferR1<ffi::S32> group_rank,
                ffi::BufferR1<ffi::S32> token, ffi::RemainingRets results, ffi::Promise promise) {
  Result<std::vector<std::span<std::byte>>> found = LeavesOf(results);
  if (!found.ok()) return found.status();
  const std::vector<std::span<std::byte>>& leaves = found.value();
  float* const stats = results.size() > 0 ? StatsOf(results) : nullptr;
  if (stats == nullptr || group_rank.element_count() != 2 ||
      token.element_count() != kTokenElements) {
    return InvalidArgument("end() needs (group, rank), a token, and a result for the statistics.");
  }
  const std::int32_t* const numbers = token.typed_data();
  if (numbers[kSession] == 0) {
    for (const std::span<std::byte> leaf : leaves) {
      if (!leaf.empty()) std::memset(leaf.data(), 0, leaf.size());
    }
    float* to = stats;
    for (const Statistic& each : kStatistics) *to++ = each.name == "slowest_process" ? -1 : 0;
    promise.SetAvailable();
    return Status();
  }
  Result<std::shared_ptr<Communicator>> communicator = Registry::Global().Find(name);
  if (!communicator.ok()) return communicator.status();
  if (numbers[kSession] != SessionOf(*communicator.value())) {
    return Status(StatusCode::kFailedPrecondition,
                  "the handle is of another session (an earlier init() of this program, or a "
                  "checkpoint), and the result of its call ended with that session; continue with "
                  "jax_optireduce.empty_handle().");
  }
  const BegunCallsOf of{.collective = std::bit_cast<std::uint32_t>(numbers[kCollective]),
                        .group = static_cast<std::uint32_t>(group_rank.typed_data()[0]),
                        .rank = static_cast<std::uint32_t>(group_rank.typed_data()[1])};
  std::size_t bytes = 0;
  for (const std::span<std::byte> leaf : leaves) bytes += leaf.size();
  return communicator.value()->begun_calls().End(
      of, std::bit_cast<std::uint32_t>(numbers[kNumber]),
      {.bytes = bytes,
       .copy =
           [leaves](std::span<const std::byte> values) {
             for (const std::span<std::byte> leaf : leaves) {
               if (!leaf.empty()) std::memcpy(leaf.data(), values.data(), leaf.size());
               values = values.subspan(leaf.size());
             }
           },
       .done =
           [promise, stats](const DeviceResult& result, std::size_t processes) mutable {
             EndFuture(promise, result, processes, stats);
           }});
}

ffi::Future End(std::string_view communicator, ffi::BufferR1<ffi::S32> group_rank,
                ffi::BufferR1<ffi::S32> token, ffi::RemainingArgs, ffi::RemainingRets results) {
  return FutureOf([&](const ffi::Promise& promise) {
    return StartEnd(communicator, group_rank, token, results, promise);
  });
}

}  // namespace

XLA_FFI_Error* BeginHandler(XLA_FFI_CallFrame* call_frame) {
  XLA_FFI_DEFINE_HANDLER(handler, Begin,
                         ffi::Ffi::Bind()
                             .Attrs<BeginAttributes>()
                             .Arg<ffi::BufferR1<ffi::S32>>()
                             .Arg<ffi::BufferR0<ffi::S32>>()
                             .RemainingArgs()
                             .Ret<ffi::BufferR1<ffi::S32>>());
  return (*handler)(call_frame);
}

XLA_FFI_Error* EndHandler(XLA_FFI_CallFrame* call_frame) {
  XLA_FFI_DEFINE_HANDLER(handler, End,
                         ffi::Ffi::Bind()
                             .Attr<std::string_view>("communicator")
                             .Arg<ffi::BufferR1<ffi::S32>>()
                             .Arg<ffi::BufferR1<ffi::S32>>()
                             .RemainingArgs()
                             .RemainingRets());
  return (*handler)(call_frame);
}

}  // namespace optireduce
