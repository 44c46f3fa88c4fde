// The permitted effects of the failures of a scenario on the session.

#include <bit>

#include "ffi/sim/scenario.h"

namespace optireduce {
namespace {

std::uint64_t Bit(std::uint64_t rank) { return std::uint64_t{1} << rank; }

}  // namespace

bool Scenario::Parted(Rank a, Rank b) const {
  const auto either = [&](std::uint64_t rank) { return a.index() == rank || b.index() == rank; };
  if (lane_cut_is_long() && either(lane_cut_rank)) return true;
  return (cut_is_long() && either(cut_rank)) || (freeze_is_long() && either(freeze_rank)) ||
         (mtu_at_us > 0 && either(mtu_rank)) ||
         (part_is_long() && ((part_side >> a.index() ^ part_side >> b.index()) & 1) != 0);
}

std::uint64_t Scenario::removable() const {
  if (ranks < 3) return 0;
  std::uint64_t all = 0;
  if (stop_at_us > 0) all |= Bit(stop_rank);
  if (leave_at_us > 0) all |= Bit(leave_rank);
  if (cut_is_long()) all |= Bit(cut_rank);
  if (freeze_is_long()) all |= Bit(freeze_rank);
  if (lane_cut_is_long()) all |= Bit(lane_cut_rank);
  if (mtu_at_us > 0) all |= Bit(mtu_rank);
  // A rank that is absent during an agreement on another one may be removed as well.
  if (all != 0 && cut_for_us > 0) all |= Bit(cut_rank);
  if (all != 0 && freeze_for_us > 0) all |= Bit(freeze_rank);
  if (all != 0 && lane_cut_for_us > 0) all |= Bit(lane_cut_rank);
  if (part_is_long()) {
    const std::uint64_t all_ranks = ~std::uint64_t{0} >> (64 - ranks);
    const auto side = static_cast<std::uint64_t>(std::popcount(part_side));
    // With two halves, the rank that is reached last after the partition is removed. With more
    // silent ranks either side may be the larger one.
    if (2 * side == ranks || all != 0) return all_ranks;
    all |= 2 * side < ranks ? part_side : all_ranks & ~part_side;
  }
  return all;
}

bool Scenario::goes_on() const {
  const auto silent = static_cast<std::uint64_t>(std::popcount(removable()));
  return silent > 0 && 2 * silent < ranks && sim_mode() == SimMode::kBounded && mismatch == 0 &&
         cancel_at_us == 0 && leave_at_end == 0 && give_up_at_us == 0 && hang_at_us == 0;
}

std::uint64_t Scenario::removals_max() const {
  if (ranks < 3 || !loses_data()) return 0;
  return goes_on() ? static_cast<std::uint64_t>(std::popcount(removable())) : ranks;
}

}  // namespace optireduce
