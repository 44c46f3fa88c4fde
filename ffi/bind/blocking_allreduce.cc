#include "ffi/bind/blocking_allreduce.h"

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ffi/base/quoted.h"
#include "ffi/bind/registry.h"
#include "ffi/codec/element_type.h"
#include "ffi/runtime/communicator.h"
#include "ffi/runtime/device_rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace optireduce {
namespace {

namespace ffi = xla::ffi;

// A view of integers, as XLA gives it to a handler.
XLA_FFI_Buffer BufferOf(std::span<std::int32_t> values, std::span<std::int64_t> dimensions) {
  return {.struct_size = XLA_FFI_Buffer_STRUCT_SIZE,
          .extension_start = nullptr,
          .dtype = XLA_FFI_DataType_S32,
          .data = values.data(),
          .rank = static_cast<std::int64_t>(dimensions.size()),
          .dims = dimensions.data()};
}

std::optional<ElementType> ElementTypeNamed(std::string_view name) {
  for (std::uint8_t i = 0; i < kElementTypes; ++i) {
    if (NameOf(static_cast<ElementType>(i)) == name) return static_cast<ElementType>(i);
  }
  return std::nullopt;
}

Status ReadLeaf(std::string_view name, std::string_view dtype, std::span<std::byte> leaf,
                DeviceCall& call) {
  const std::optional<ElementType> type = ElementTypeNamed(dtype);
  if (!type || leaf.size() % SizeOf(*type) != 0) {
    return InvalidArgument("a leaf of " + Quoted(name) + " must consist of numbers of dtype " +
                           Quoted(dtype) + ", got " + std::to_string(leaf.size()) + " bytes.");
  }
  call.spec.element_type = *type;
  call.spec.elements = leaf.size() / SizeOf(*type);
  if (!leaf.empty()) call.leaves.push_back({.data = leaf.data(), .elements = call.spec.elements});
  return Status();
}

}  // namespace

Status ReduceAndWait(const CallAttributes& attributes, std::array<std::int32_t, 2> group_rank,
                     std::int32_t step, std::string_view dtype, std::span<std::byte> leaf,
                     float* stats) {
  Result<std::shared_ptr<Communicator>> found = Registry::Global().Find(attributes.communicator);
  if (!found.ok()) return found.status();
  Communicator& communicator = *found.value();
  std::array<std::int64_t, 1> dimensions{2};
  const XLA_FFI_Buffer place = BufferOf(group_rank, dimensions);
  const XLA_FFI_Buffer number = BufferOf(std::span(&step, 1), {});
  DeviceCall call;
  Status read = ReadCall(attributes, ffi::BufferR1<ffi::S32>(&place),
                         ffi::BufferR0<ffi::S32>(&number), communicator.options(), call);
  if (read.ok()) read = ReadLeaf(attributes.name, dtype, leaf, call);
  if (read.ok()) read = CheckBlocks(attributes, call);
  if (read.ok() && call.drain) read = communicator.CheckDrain(call);
  if (!read.ok()) return read;
  // Shared: the caller may return before the completion thread has left `set_value`.
  const auto ended = std::make_shared<std::promise<Status>>();
  call.done = [ended, stats, processes = call.spec.members.size()](const DeviceResult& result) {
    WriteStats(result, processes, stats);
    ended->set_value(result.status);
  };
  Registry::Global().failures().Watch(call);
  communicator.Start(std::move(call));
  return ended->get_future().get();
}

Result<Sequence> TakeNumber(std::string_view communicator, std::string_view name,
                            std::array<std::int32_t, 2> group_rank) {
  Result<std::shared_ptr<Communicator>> found = Registry::Global().Find(communicator);
  if (!found.ok()) return found.status();
  return found.value()->TakeNextSequence(std::string(name),
                                         static_cast<std::uint32_t>(group_rank[0]),
                                         static_cast<std::uint32_t>(group_rank[1]));
}

}  // namespace optireduce
