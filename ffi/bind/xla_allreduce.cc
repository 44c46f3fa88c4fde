#include "ffi/bind/xla_allreduce.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/quoted.h"
#include "ffi/base/status.h"
#include "ffi/bind/call_facts.h"
#include "ffi/bind/registry.h"
#include "ffi/bind/status_encoding.h"
#include "ffi/bind/xla_handlers.h"
#include "ffi/codec/element_type.h"
#include "ffi/codec/wire_format.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/runtime/communicator.h"
#include "ffi/runtime/device_rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace optireduce {
namespace {

namespace ffi = xla::ffi;

Status Invalid(std::string_view name, std::string_view what) {
  return InvalidArgument("the call of " + Quoted(name) + " is invalid: " + std::string(what));
}

std::optional<ElementType> ElementTypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return ElementType::kFloat32;
    case ffi::DataType::BF16:
      return ElementType::kBfloat16;
    case ffi::DataType::F16:
      return ElementType::kFloat16;
    case ffi::DataType::F64:
      return ElementType::kFloat64;
    case ffi::DataType::S32:
      return ElementType::kInt32;
    case ffi::DataType::C64:
      return ElementType::kComplex64;
    case ffi::DataType::C128:
      return ElementType::kComplex128;
    default:
      return std::nullopt;
  }
}

// The element type of pairs of values. Sums of complex numbers are those of their parts.
std::optional<ElementType> PairOf(std::optional<ElementType> type) {
  if (type == ElementType::kFloat32) return ElementType::kComplex64;
  if (type == ElementType::kFloat64) return ElementType::kComplex128;
  return std::nullopt;
}

Status ReadMode(const CallAttributes& attributes, CollectiveSpec& spec) {
  const auto* const mode = std::ranges::find(kModes, attributes.mode, &Mode::name);
  if (mode == kModes.end()) {
    return Invalid(attributes.name, "there is no mode " + Quoted(attributes.mode) + ".");
  }
  const auto* const operation =
      std::ranges::find(kOperations, attributes.operation, &Operation::name);
  if (operation == kOperations.end()) {
    return Invalid(attributes.name, "there is no operation " + Quoted(attributes.operation) + ".");
  }
  spec.reduce_scatter = operation->reduce_scatter ? mode->reduce_scatter : LatePolicy::kNoStage;
  spec.all_gather = operation->all_gather ? mode->all_gather : LatePolicy::kNoStage;
  return Status();
}

Status ReadWireFormat(const CallAttributes& attributes, CollectiveSpec& spec) {
  for (std::uint8_t i = 0; i < kWireFormats; ++i) {
    spec.wire_format = static_cast<WireFormat>(i);
    if (NameOf(spec.wire_format) == attributes.wire_format) return Status();
  }
  return Invalid(attributes.name,
                 "there is no wire format " + Quoted(attributes.wire_format) + ".");
}

// Reads a group of whose ranks each process of the session has one device.
void ReadReplicas(const CallAttributes& attributes, std::uint16_t world_size, DeviceCall& call) {
  for (std::uint32_t i = 0; i < attributes.group_size; ++i) call.local_ranks.push_back(i);
  for (std::uint16_t i = 0; i < world_size; ++i) call.spec.members.emplace_back(i);
}

// Reads the processes of the call's group.
Status ReadMembers(const CallAttributes& attributes, Rank process, std::uint16_t world_size,
                   DeviceCall& call) {
  const std::string_view name = attributes.name;
  const std::size_t first = call.group * static_cast<std::size_t>(attributes.group_size);
  if (attributes.group_processes[first] == kEachProcess) {
    ReadReplicas(attributes, world_size, call);
    return Status();
  }
  std::set<Rank> members;
  for (std::uint32_t i = 0; i < attributes.group_size; ++i) {
    const std::int32_t member = attributes.group_processes[first + i];
    if (member < 0 || member >= world_size) {
      return Invalid(name, "rank " + std::to_string(i) + " of the group is on process " +
                               std::to_string(member) +
                               ", but the communicator has processes 0 to " +
                               std::to_string(world_size - 1) +
                               ". Was init() called with all processes of the mesh?");
    }
    members.insert(Rank(static_cast<std::uint16_t>(member)));
    if (member == process.value()) call.local_ranks.push_back(i);
    if (i == call.rank && member != process.value()) {
      return Invalid(name, "rank " + std::to_string(i) + " of the group belongs to process " +
                               std::to_string(member) + ", but this is process " +
                               std::to_string(process.value()) +
                               ". The mesh must list each device under the process that owns it.");
    }
  }
  call.spec.members.assign(members.begin(), members.end());
  return Status();
}

// Reads whom an all_gather that drops late data waits for.
Status ReadQuorum(const CallAttributes& attributes, DeviceCall& call) {
  if (attributes.clusters.size() == 0) return Status();
  const auto size = static_cast<std::size_t>(attributes.group_size);
  const std::size_t first = call.group * size;
  if (call.spec.members.size() == 1) return Status();
  if (attributes.clusters.size() != size || call.spec.members.size() != size) {
    return Invalid(attributes.name,
                   "a coded call needs each rank on a process of its own, and a cluster of each: "
                   "got " +
                       std::to_string(size) + " ranks on " +
                       std::to_string(call.spec.members.size()) + " processes, and " +
                       std::to_string(attributes.clusters.size()) + " clusters.");
  }
  call.quorum.clusters.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::int32_t cluster = attributes.clusters[i];
    if (cluster < 0 || static_cast<std::size_t>(cluster) >= size) {
      return Invalid(attributes.name, "a cluster must be from 0 to " + std::to_string(size - 1) +
                                          ", got " + std::to_string(cluster) + ".");
    }
    const Rank process(static_cast<std::uint16_t>(attributes.group_processes[first + i]));
    call.quorum.clusters[MemberOf(call.spec, process)->index()] =
        static_cast<std::uint16_t>(cluster);
  }
  call.quorum.spare = static_cast<std::uint16_t>(
      std::clamp<std::int64_t>(attributes.spare, 0, attributes.group_size));
  return Status();
}

// Reads the participants: the processes of the device's group, and the local ones of its ranks.
Status ReadGroup(const CallAttributes& attributes, const std::int32_t* group_rank, Rank process,
                 std::uint16_t world_size, DeviceCall& call) {
  const std::string_view name = attributes.name;
  const auto entries = static_cast<std::int64_t>(attributes.group_processes.size());
  const std::int64_t size = attributes.group_size;
  if (size < 1 || entries < 1 || entries % size != 0) {
    return Invalid(name, "group_processes must be [groups, group_size]: got " +
                             std::to_string(entries) + " entries for group_size " +
                             std::to_string(size) + ".");
  }
  const std::int64_t groups = entries / size;
  const std::int64_t group = group_rank[0];
  const std::int64_t rank = group_rank[1];
  if (group < 0 || group >= groups || rank < 0 || rank >= size) {
    return Invalid(name, "(group, rank) must be below (" + std::to_string(groups) + ", " +
                             std::to_string(size) + "), got (" + std::to_string(group) + ", " +
                             std::to_string(rank) + ").");
  }
  call.group = static_cast<std::uint32_t>(group);
  call.groups = static_cast<std::uint32_t>(groups);
  call.rank = static_cast<std::uint32_t>(rank);
  Status status = ReadMembers(attributes, process, world_size, call);
  return status.ok() ? ReadQuorum(attributes, call) : status;
}

}  // namespace

std::uint64_t ElementsOf(const CallAttributes& attributes, const ffi::AnyBuffer& leaf) {
  return static_cast<std::uint64_t>(leaf.element_count()) / (attributes.pairs ? 2 : 1);
}

Result<ffi::AnyBuffer> ReadLeaf(const CallAttributes& attributes, ffi::RemainingArgs arguments,
                                std::size_t i, CollectiveSpec& spec) {
  const std::string_view name = attributes.name;
  const auto leaf = arguments.get<ffi::AnyBuffer>(i);
  if (!leaf.has_value()) return Invalid(name, "leaf " + std::to_string(i) + " is not an array.");
  std::optional<ElementType> type = ElementTypeOf(leaf->element_type());
  if (attributes.pairs) {
    type = PairOf(type);
    if (!type || leaf->element_count() % 2 != 0) {
      return Invalid(name, "leaf " + std::to_string(i) + " does not consist of pairs of floats.");
    }
  }
  if (!type) {
    return Invalid(name,
                   "the dtype of leaf " + std::to_string(i) +
                       " cannot be summed; convert it to float32, bfloat16, float16, float64 or "
                       "int32.");
  }
  if (i == 0) spec.element_type = *type;
  if (*type != spec.element_type) {
    return Invalid(name, "all leaves of a call must have one dtype: leaf 0 is " +
                             std::string(NameOf(spec.element_type)) + ", leaf " +
                             std::to_string(i) + " is " + std::string(NameOf(*type)) + ".");
  }
  spec.elements += ElementsOf(attributes, *leaf);
  return *leaf;
}

float* StatsOf(ffi::RemainingRets results) {
  auto last = results.get<ffi::AnyBuffer>(results.size() - 1);
  if (!last.has_value()) return nullptr;
  ffi::AnyBuffer buffer = **last;
  const bool fits =
      buffer.element_type() == ffi::DataType::F32 && buffer.element_count() == kStatistics.size();
  return fits ? static_cast<float*>(buffer.untyped_data()) : nullptr;
}

void WriteStats(const DeviceResult& result, std::size_t processes, float* stats) {
  const CallReport report{.result = result, .processes = processes};
  for (const Statistic& statistic : kStatistics) {
    *stats++ = static_cast<float>(statistic.value(report));
  }
}

void EndFuture(ffi::Promise& promise, const DeviceResult& result, std::size_t processes,
               float* stats) {
  WriteStats(result, processes, stats);
  if (result.status.ok()) {
    promise.SetAvailable();
  } else {
    promise.SetError(EncodeError(result.status));
  }
}

namespace {

Status ReadAttributes(const CallAttributes& attributes, DeviceCall& call) {
  const std::string_view name = attributes.name;
  if (name.empty() || name.size() > kNameBytesMax) {
    return Invalid(name.substr(0, kNameBytesMax),
                   "name must have from 1 to " + std::to_string(kNameBytesMax) + " bytes, got " +
                       std::to_string(name.size()) + ".");
  }
  call.key = attributes.key;
  call.drain = attributes.drain == kDrainOfCalls || attributes.drain == kDrainOfCallsIfAny;
  call.averages = attributes.averages;
  call.drains_if_any = attributes.drain == kDrainOfCallsIfAny;
  call.spec.name = name;
  call.spec.description = attributes.description;
  call.spec.fingerprint = static_cast<std::uint64_t>(attributes.fingerprint);
  Status status = ReadMode(attributes, call.spec);
  return status.ok() ? ReadWireFormat(attributes, call.spec) : status;
}

Status ReadStep(std::string_view name, std::int32_t step, DeviceCall& call) {
  if (step < -1) {
    return Invalid(name, "step must be 0 or more, got " + std::to_string(step) +
                             "; leave it out to have the calls counted.");
  }
  if (step >= 0) call.step = Sequence(static_cast<std::uint32_t>(step));
  return Status();
}

// Checks the size of a bucket with one stage. It has a block for each rank of the group, in the
// order of the processes: the blocks of a process are its shard.
Status CheckBlocks(const CallAttributes& attributes, const DeviceCall& call) {
  const auto size = static_cast<std::uint64_t>(attributes.group_size);
  if (HasBothStages(call.spec)) return Status();
  if (call.local_ranks.size() * call.spec.members.size() != size) {
    return Invalid(
        attributes.name,
        "all processes of a group must have the same number of its ranks: this one has " +
            std::to_string(call.local_ranks.size()) + " of the " + std::to_string(size) +
            " ranks on " + std::to_string(call.spec.members.size()) + " processes.");
  }
  if (call.spec.elements % size != 0) {
    return Invalid(attributes.name, "the bucket must have a block for each of the " +
                                        std::to_string(size) + " ranks, but it has " +
                                        std::to_string(call.spec.elements) + " elements.");
  }
  return Status();
}

}  // namespace

Status ReadCall(const CallAttributes& attributes, std::span<const std::int32_t> group_rank,
                std::int32_t step, const Communicator& communicator, DeviceCall& call) {
  const std::string_view name = attributes.name;
  if (group_rank.size() != 2) {
    return Invalid(name, "the first operand must be (group, rank) as s32[2].");
  }
  Status read = ReadAttributes(attributes, call);
  if (read.ok()) read = ReadStep(name, step, call);
  if (!read.ok()) return read;
  const CommunicatorOptions& options = communicator.options();
  return ReadGroup(attributes, group_rank.data(), options.rank, options.world_size, call);
}

Status StartCall(const CallAttributes& attributes, Communicator& communicator, DeviceCall call) {
  if (Status status = CheckBlocks(attributes, call); !status.ok()) return status;
  if (call.drain) {
    if (Status status = communicator.CheckDrain(call); !status.ok()) return status;
  }
  Registry::Global().failures().Watch(call);
  communicator.Start(std::move(call));
  return Status();
}

namespace {

// Copies pointers and sizes out of the call frame. A leaf that XLA did not alias is read where it
// lies; a call with one stage needs it in place.
Status ReadLeaves(const CallAttributes& attributes, ffi::RemainingArgs arguments,
                  ffi::RemainingRets results, DeviceCall& call) {
  const std::string_view name = attributes.name;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    Result<ffi::AnyBuffer> leaf = ReadLeaf(attributes, arguments, i, call.spec);
    if (!leaf.ok()) return leaf.status();
    const ffi::AnyBuffer& in = leaf.value();
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!result.has_value() || (*result)->element_type() != in.element_type() ||
        (*result)->element_count() != in.element_count()) {
      return Invalid(name, "result " + std::to_string(i) +
                               " must have the shape and dtype of leaf " + std::to_string(i) + ".");
    }
    if (in.element_count() == 0) continue;
    auto* const out = static_cast<std::byte*>((*result)->untyped_data());
    const auto* const from = static_cast<const std::byte*>(in.untyped_data());
    call.leaves.push_back({.data = out,
                           .elements = ElementsOf(attributes, in),
                           .from = from == out ? nullptr : from});
  }
  if (!HasBothStages(call.spec)) MoveToPlace(call.leaves, SizeOf(call.spec.element_type));
  return Status();
}

// Finds every error of a call before the call is started.
Status StartAllReduce(const CallAttributes& attributes, ffi::BufferR1<ffi::S32> group_rank,
                      ffi::BufferR0<ffi::S32> step, ffi::RemainingArgs arguments,
                      ffi::RemainingRets results, ffi::Promise promise) {
  Result<std::shared_ptr<Communicator>> found = Registry::Global().Find(attributes.communicator);
  if (!found.ok()) return found.status();
  Communicator& communicator = *found.value();
  const std::string_view name = attributes.name;
  if (results.size() != arguments.size() + 1) {
    return Invalid(name, "expected one result for each of the " + std::to_string(arguments.size()) +
                             " leaves and one for the stats, got " +
                             std::to_string(results.size()) + ".");
  }
  float* const stats = StatsOf(results);
  if (stats == nullptr) return Invalid(name, "the last result must be the statistics, in f32.");
  DeviceCall call;
  Status read = ReadCall(attributes, {group_rank.typed_data(), group_rank.element_count()},
                         *step.typed_data(), communicator, call);
  if (read.ok()) read = ReadLeaves(attributes, arguments, results, call);
  if (!read.ok()) return read;
  call.done = [promise = std::move(promise), stats,
               processes = call.spec.members.size()](const DeviceResult& result) mutable {
    EndFuture(promise, result, processes, stats);
  };
  return StartCall(attributes, communicator, std::move(call));
}

ffi::Future AllReduce(const CallAttributes& attributes, ffi::BufferR1<ffi::S32> group_rank,
                      ffi::BufferR0<ffi::S32> step, ffi::RemainingArgs arguments,
                      ffi::RemainingRets results) {
  return FutureOf([&](const ffi::Promise& promise) {
    return StartAllReduce(attributes, group_rank, step, arguments, results, promise);
  });
}

ffi::Error TakeSequence(std::string_view communicator, std::string_view name,
                        ffi::BufferR1<ffi::S32> group_rank, ffi::AnyBuffer bucket,
                        ffi::Result<ffi::BufferR0<ffi::S32>> sequence,
                        ffi::Result<ffi::AnyBuffer> same_bucket) {
  return ErrorOf([&]() -> Status {
    Result<std::shared_ptr<Communicator>> found = Registry::Global().Find(communicator);
    if (!found.ok()) return found.status();
    const std::int32_t* const values = group_rank.typed_data();
    if (group_rank.element_count() != 2 || values[0] < 0 || values[1] < 0) {
      return Invalid(name, "the operand must be (group, rank) as s32[2], 0 or more.");
    }
    if (same_bucket->size_bytes() != bucket.size_bytes()) {
      return Invalid(name, "the last result must be as large as the bucket.");
    }
    const Sequence taken =
        found.value()->TakeNextSequence(std::string(name), static_cast<std::uint32_t>(values[0]),
                                        static_cast<std::uint32_t>(values[1]));
    if (taken.value() > static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max())) {
      return Status(StatusCode::kResourceExhausted,
                    "2^31 calls of one name were made; give the call a new name=.");
    }
    *sequence->typed_data() = static_cast<std::int32_t>(taken.value());
    // If XLA did not alias them.
    if (same_bucket->untyped_data() != bucket.untyped_data()) {
      std::memcpy(same_bucket->untyped_data(), bucket.untyped_data(), bucket.size_bytes());
    }
    return Status();
  });
}

}  // namespace

XLA_FFI_Error* AllReduceHandler(XLA_FFI_CallFrame* call_frame) {
  XLA_FFI_DEFINE_HANDLER(handler, AllReduce,
                         ffi::Ffi::Bind()
                             .Attrs<CallAttributes>()
                             .Arg<ffi::BufferR1<ffi::S32>>()
                             .Arg<ffi::BufferR0<ffi::S32>>()
                             .RemainingArgs()
                             .RemainingRets());
  return (*handler)(call_frame);
}

XLA_FFI_Error* SequenceHandler(XLA_FFI_CallFrame* call_frame) {
  XLA_FFI_DEFINE_HANDLER(handler, TakeSequence,
                         ffi::Ffi::Bind()
                             .Attr<std::string_view>("communicator")
                             .Attr<std::string_view>("name")
                             .Arg<ffi::BufferR1<ffi::S32>>()
                             .Arg<ffi::AnyBuffer>()
                             .Ret<ffi::BufferR0<ffi::S32>>()
                             .Ret<ffi::AnyBuffer>());
  return (*handler)(call_frame);
}

}  // namespace optireduce
