// The permitted effects of the failures of a scenario on the session.

#include <bit>
#include <utility>

#include "ffi/sim/scenario.h"

namespace optireduce {
namespace {

std::uint64_t BitIf(bool exists, std::uint64_t rank) { return std::uint64_t{exists} << rank; }

}  // namespace

std::uint64_t Scenario::narrow_rank() const {
  return narrows_one_path() && mtu_rank / ranks_per_slice == 0 ? mtu_to : mtu_rank;
}

bool Scenario::Parted(Rank a, Rank b) const {
  const std::pair<bool, std::uint64_t> failures[] = {{cut_is_long(), cut_rank},
                                                     {freeze_is_long(), freeze_rank},
                                                     {lane_cut_is_long(), lane_cut_rank},
                                                     {mtu_at_us > 0, mtu_rank},
                                                     {narrows_one_path(), mtu_to}};
  for (const auto& [exists, rank] : failures) {
    if (exists && (a.index() == rank || b.index() == rank)) return true;
  }
  return part_is_long() && ((part_side >> a.index() ^ part_side >> b.index()) & 1) != 0;
}

std::uint64_t Scenario::WithSlices(std::uint64_t removed) const {
  std::uint64_t whole = 0;
  for (std::uint16_t rank = 0; rank < 64; ++rank) {
    if ((removed >> rank & 1) == 0) continue;
    for (const Rank of : slices().SliceOf(Rank(rank))) {
      if (of.index() < 64) whole |= BitIf(true, of.index());
    }
  }
  return whole;
}

std::uint64_t Scenario::removable() const {
  if (ranks < 3) return 0;
  std::uint64_t all = BitIf(stop_at_us > 0, stop_rank) | BitIf(leave_at_us > 0, leave_rank) |
                      BitIf(cut_is_long(), cut_rank) | BitIf(freeze_is_long(), freeze_rank) |
                      BitIf(lane_cut_is_long(), lane_cut_rank) |
                      BitIf(mtu_at_us > 0, narrow_rank()) |
                      BitIf(sim_mismatch() == SimMismatch::kLoneCall, mismatch_rank);
  if (all != 0) {
    // A rank that is absent during an agreement on another one may be removed as well.
    all |= BitIf(cut_for_us > 0, cut_rank) | BitIf(freeze_for_us > 0, freeze_rank) |
           BitIf(lane_cut_for_us > 0, lane_cut_rank);
  }
  all = WithSlices(all) & ~absent;
  if (!part_is_long()) return all;
  const std::uint64_t all_ranks = ~std::uint64_t{0} >> (64 - ranks) & ~absent;
  const auto side = static_cast<std::uint64_t>(std::popcount(part_side & all_ranks));
  // With two halves, the rank that is reached last after the partition is removed. With more
  // silent ranks, or slices that are parted, either side may be the larger one.
  if (2 * side == present() || all != 0 || ranks_per_slice > 1) return all_ranks;
  return all_ranks & (2 * side < present() ? part_side : ~part_side);
}

bool Scenario::goes_on() const {
  const auto silent = static_cast<std::uint64_t>(std::popcount(removable()));
  return silent > 0 && 2 * silent < present() && sim_mode() == SimMode::kBounded &&
         sim_stages() == SimStages::kBoth && mismatch == 0 && cancel_at_us == 0 &&
         leave_at_end == 0 && give_up_at_us == 0 && hang_at_us == 0;
}

std::uint64_t Scenario::removals_max() const {
  if (ranks < 3 || !loses_data()) return 0;
  return goes_on() ? static_cast<std::uint64_t>(std::popcount(removable())) : ranks;
}

}  // namespace optireduce
