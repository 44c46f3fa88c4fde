#include "ffi/bind/module_callback.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "ffi/bind/blocking_allreduce.h"
#include "ffi/bind/call_facts.h"
#include "xla/ffi/api/ffi.h"

namespace optireduce {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using GroupRank = std::array<std::int32_t, 2>;

std::vector<float> Reduce(const std::string& communicator, const std::string& name,
                          const std::string& key, const std::string& description,
                          const std::string& operation, const std::string& mode,
                          const std::string& wire_format, std::int64_t fingerprint,
                          const std::vector<std::int32_t>& group_processes, std::int64_t group_size,
                          std::int64_t drain, bool averages,
                          const std::vector<std::int32_t>& clusters, std::int64_t spare,
                          GroupRank group_rank, std::int32_t step, const std::string& dtype,
                          const Bytes& leaf) {
  const CallAttributes attributes{
      .communicator = communicator,
      .name = name,
      .key = key,
      .description = description,
      .operation = operation,
      .mode = mode,
      .wire_format = wire_format,
      .fingerprint = fingerprint,
      .group_processes = {group_processes.data(), group_processes.size()},
      .group_size = group_size,
      .drain = drain,
      .averages = averages,
      .clusters = {clusters.data(), clusters.size()},
      .spare = spare};
  const std::span bytes(reinterpret_cast<std::byte*>(leaf.data()), leaf.size());
  std::vector<float> stats(kStatistics.size());
  Status status;
  {
    const nb::gil_scoped_release release;
    status = ReduceAndWait(attributes, group_rank, step, dtype, bytes, stats.data());
  }
  if (!status.ok()) throw std::runtime_error(status.message());
  return stats;
}

std::uint32_t Take(const std::string& communicator, const std::string& name, GroupRank group_rank) {
  Result<Sequence> taken = TakeNumber(communicator, name, group_rank);
  if (!taken.ok()) throw std::runtime_error(taken.status().message());
  return taken.value().value();
}

}  // namespace

void BindCallback(nb::module_& module) {
  module.def("reduce_and_wait", &Reduce, nb::kw_only(), "communicator"_a, "name"_a, "key"_a,
             "description"_a, "operation"_a, "mode"_a, "wire_format"_a, "fingerprint"_a,
             "group_processes"_a, "group_size"_a, "drain"_a, "averages"_a, "clusters"_a, "spare"_a,
             "group_rank"_a, "step"_a, "dtype"_a, "leaf"_a);
  module.def("take_number", &Take, "communicator"_a, "name"_a, "group_rank"_a);
}

}  // namespace optireduce
