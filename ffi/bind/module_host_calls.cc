// The allreduce for Python code outside of programs.

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/quoted.h"
#include "ffi/bind/call_facts.h"
#include "ffi/bind/module_parts.h"
#include "ffi/bind/registry.h"
#include "ffi/bind/xla_allreduce.h"
#include "ffi/codec/element_type.h"

namespace optireduce {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using GroupRank = std::array<std::int32_t, 2>;

// The attributes of a handler's call, as views into the arrays and texts of the dictionary.
CallAttributes AttributesOf(const nb::dict& given) {
  const auto text = [&](const char* name) { return nb::cast<std::string_view>(given[name]); };
  const auto number = [&](const char* name) { return nb::cast<std::int64_t>(given[name]); };
  const auto numbers = [&](const char* name) -> xla::ffi::Span<const std::int32_t> {
    using Array = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig>;
    const auto array = nb::cast<Array>(given[name], /*convert=*/false);
    return {array.data(), array.size()};
  };
  return {.communicator = text("communicator"),
          .name = text("name"),
          .key = text("key"),
          .description = text("description"),
          .operation = text("operation"),
          .mode = text("mode"),
          .wire_format = text("wire_format"),
          .fingerprint = number("fingerprint"),
          .group_processes = numbers("group_processes"),
          .group_size = number("group_size"),
          .drain = number("drain"),
          .averages = nb::cast<bool>(given["averages"]),
          .pairs = nb::cast<bool>(given["pairs"]),
          .clusters = numbers("clusters"),
          .spare = number("spare")};
}

Status ReadLeaf(std::string_view name, std::string_view dtype, const Bytes& leaf,
                DeviceCall& call) {
  for (std::uint8_t i = 0; i < kElementTypes; ++i) {
    const auto type = static_cast<ElementType>(i);
    if (NameOf(type) != dtype || leaf.size() % SizeOf(type) != 0) continue;
    call.spec.element_type = type;
    call.spec.elements = leaf.size() / SizeOf(type);
    if (leaf.size() > 0) {
      call.leaves = {
          {.data = reinterpret_cast<std::byte*>(leaf.data()), .elements = call.spec.elements}};
    }
    return Status();
  }
  return InvalidArgument("a leaf of " + Quoted(name) + " must consist of numbers of dtype " +
                         Quoted(dtype) + ", got " + std::to_string(leaf.size()) + " bytes.");
}

Status ReduceAndWait(const CallAttributes& attributes, GroupRank group_rank, std::int32_t step,
                     std::string_view dtype, const Bytes& leaf, float* stats) {
  Result<std::shared_ptr<Communicator>> found = Registry::Global().Find(attributes.communicator);
  if (!found.ok()) return found.status();
  DeviceCall call;
  Status status = ReadCall(attributes, group_rank, step, *found.value(), call);
  if (status.ok()) status = ReadLeaf(attributes.name, dtype, leaf, call);
  if (!status.ok()) return status;
  // Shared: the caller may return before the completion thread has left `set_value`.
  const auto ended = std::make_shared<std::promise<Status>>();
  call.done = [ended, stats, processes = call.spec.members.size()](const DeviceResult& result) {
    WriteStats(result, processes, stats);
    ended->set_value(result.status);
  };
  status = StartCall(attributes, *found.value(), std::move(call));
  return status.ok() ? ended->get_future().get() : status;
}

std::vector<float> Reduce(const nb::dict& attributes, GroupRank group_rank, std::int32_t step,
                          const std::string& dtype, const Bytes& leaf) {
  const CallAttributes read = AttributesOf(attributes);
  std::vector<float> stats(kStatistics.size());
  Status status;
  {
    const nb::gil_scoped_release release;
    status = ReduceAndWait(read, group_rank, step, dtype, leaf, stats.data());
  }
  if (!status.ok()) throw std::runtime_error(status.message());
  return stats;
}

}  // namespace

void BindHostCalls(nb::module_& module) {
  module.def("reduce_and_wait", &Reduce, "attributes"_a, nb::kw_only(), "group_rank"_a, "step"_a,
             "dtype"_a, "leaf"_a);
}

}  // namespace optireduce
