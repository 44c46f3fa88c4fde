#include "ffi/protocol/session/argument_checks.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "ffi/protocol/collective/directory.h"

namespace optireduce {
namespace {

// Source: RFC 791 has every host take 576 bytes; less 28 for IPv4 and UDP.
constexpr std::size_t kDatagramBytesMin = 548;
// Source: the largest UDP payload over IPv4, 65,535 - 28.
constexpr std::size_t kDatagramBytesMax = 65507;
// Chosen: the announcement's bitmap of members stays within 128 bytes.
constexpr std::uint16_t kWorldSizeMax = 1024;

Status Invalid(const std::string& message) { return InvalidArgument("jax_optireduce: " + message); }

bool HasValidMembers(const CollectiveSpec& spec, const EndpointOptions& options) {
  const bool ascending =
      std::ranges::adjacent_find(spec.members, std::greater_equal<>()) == spec.members.end();
  return !spec.members.empty() && ascending && spec.members.back().value() < options.world_size &&
         MemberOf(spec, options.rank);
}

}  // namespace

Status CheckOptions(const EndpointOptions& options) {
  if (options.world_size == 0 || options.world_size > kWorldSizeMax ||
      options.rank.value() >= options.world_size) {
    return Invalid("the world size must be 1 to " + std::to_string(kWorldSizeMax) +
                   " and the rank below it, got rank " + std::to_string(options.rank.value()) +
                   " of " + std::to_string(options.world_size));
  }
  if (options.ranks_per_slice == 0 || options.world_size % options.ranks_per_slice != 0) {
    return Invalid("slices of " + std::to_string(options.ranks_per_slice) +
                   " ranks must divide the " + std::to_string(options.world_size) +
                   " ranks of the session");
  }
  if (options.datagram_bytes_max < kDatagramBytesMin ||
      options.datagram_bytes_max > kDatagramBytesMax) {
    return Invalid("datagrams must have " + std::to_string(kDatagramBytesMin) + " to " +
                   std::to_string(kDatagramBytesMax) + " bytes, got " +
                   std::to_string(options.datagram_bytes_max));
  }
  if (std::ranges::find(options.absent, options.rank) != options.absent.end() ||
      (!options.absent.empty() && !options.catches_up())) {
    return Invalid("ranks may be absent from a session of three or more, and not this one, rank " +
                   std::to_string(options.rank.value()) + " of " +
                   std::to_string(options.world_size));
  }
  return {};
}

Status CheckSpec(const CollectiveSpec& spec, const EndpointOptions& options) {
  if (spec.name.size() > kWireNameBytesMax) {
    return Invalid("the name of a collective may have " + std::to_string(kWireNameBytesMax) +
                   " bytes, got " + std::to_string(spec.name.size()));
  }
  if (!HasValidMembers(spec, options)) {
    return Invalid("the members of '" + spec.name +
                   "' must be ascending ranks of this session and contain this rank");
  }
  if (!HasMode(spec)) {
    return Invalid(
        "'" + spec.name +
        "' must have the policies of a mode (exact: wait, wait; agreed: defer, wait; "
        "bounded: defer, defer; lossy: drop, drop), or one stage: reduce_scatter with any "
        "policy, all_gather with wait or drop; and positive deadlines of stages that drop or "
        "defer");
  }
  if (!HasWholeShards(spec)) {
    return Invalid("'" + spec.name + "' has one stage, so its " + std::to_string(spec.elements) +
                   " elements must be divisible by its " + std::to_string(spec.members.size()) +
                   " members");
  }
  if (Rounds(spec) && spec.element_type != ElementType::kFloat32) {
    return Invalid("'" + spec.name + "' is " + std::string(NameOf(spec.element_type)) +
                   ", and only float32 is rounded to wire_format=\"" +
                   std::string(NameOf(spec.wire_format)) + "\"; leave it out");
  }
  if (spec.element_type == ElementType::kInt32 && spec.reduce_scatter == LatePolicy::kDrop) {
    return Invalid("'" + spec.name +
                   "' drops late data and rescales the sum, which integers do not allow; use "
                   "mode=\"exact\"");
  }
  return {};
}

Status CheckLeaves(const Submission& submission) {
  const CollectiveSpec& spec = submission.spec;
  std::uint64_t elements = 0;
  for (const Leaf& leaf : submission.leaves) elements += leaf.elements;
  if (elements == spec.elements) return {};
  return Invalid("'" + spec.name + "' has " + std::to_string(spec.elements) +
                 " elements, but its leaves have " + std::to_string(elements));
}

Status CheckSequence(const Collective& collective, const Submission& submission) {
  const Sequence sequence = submission.sequence;
  if (!collective.conflict.ok()) return collective.conflict;
  if (collective.accepted && sequence <= *collective.accepted) {
    return Invalid("the calls of a collective must have growing numbers (step=): got " +
                   Describe(submission.spec, sequence) + " after call " +
                   std::to_string(collective.accepted->value()) +
                   "; use another name= to start again");
  }
  if (sequence == kFinalDrain) {
    return Invalid("the number of a call (step=) must be below " +
                   std::to_string(kFinalDrain.value()));
  }
  return {};
}

}  // namespace optireduce
