#include "ffi/schedule/tar.h"

#include <algorithm>

#include "ffi/base/check.h"

namespace optireduce {
namespace {

// The receiver of `member` in the `step`-th of the n - 1 steps of a stage. In each step every
// member sends to one other and receives from one other.
MemberIndex TargetOf(std::uint16_t world_size, MemberIndex member, std::uint32_t step) {
  const std::uint32_t target = (member.value() + world_size - step) % world_size;
  return MemberIndex(static_cast<std::uint16_t>(target));
}

}  // namespace

Schedule TarSchedule(std::uint16_t world_size, std::uint16_t incast) {
  OR_CHECK(world_size > 0);
  const std::uint32_t steps = world_size - 1u;
  const std::uint32_t joined = std::clamp<std::uint32_t>(incast, 1, std::max(1u, steps));
  Schedule schedule{
      .world_size = world_size, .incast = static_cast<std::uint16_t>(joined), .rounds = {}};
  for (const Op op : {Op::kReduce, Op::kCopy}) {
    for (std::uint32_t first = 1; first <= steps; first += joined) {
      Round round;
      for (std::uint32_t step = first; step < first + joined && step <= steps; ++step) {
        for (std::uint16_t i = 0; i < world_size; ++i) {
          const MemberIndex from(i);
          const MemberIndex to = TargetOf(world_size, from, step);
          // A contribution goes to the shard's owner, a reduced shard comes from it.
          const MemberIndex shard = op == Op::kReduce ? to : from;
          round.push_back({.from = from, .to = to, .shard = shard, .op = op});
        }
      }
      schedule.rounds.push_back(std::move(round));
    }
  }
  return schedule;
}

std::vector<MemberIndex> TarSendOrder(std::uint16_t world_size, MemberIndex member) {
  OR_CHECK(member.value() < world_size);
  std::vector<MemberIndex> order;
  for (std::uint32_t step = 1; step < world_size; ++step) {
    order.push_back(TargetOf(world_size, member, step));
  }
  return order;
}

}  // namespace optireduce
