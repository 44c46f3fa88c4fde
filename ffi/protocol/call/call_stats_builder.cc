#include "ffi/protocol/call/call_stats_builder.h"

namespace optireduce {

void CallStatsBuilder::FindLatest(Instant submitted_at, Instant now) {
  for (const MemberIndex member : collective_.others) {
    if (arrivals_.Absent(member)) stats.absent.push_back(collective_.RankOf(member));
  }
  for (const auto& [member, at] : arrivals_.FindLast(stats.arrivals.latest.size())) {
    stats.arrivals.latest[stats.arrivals.size++] = {.rank = collective_.RankOf(member),
                                                    .at = at - submitted_at};
  }
  const Arrivals::Latest latest = arrivals_.FindLatest(submitted_at, now);
  if (latest.behind == Duration::zero()) return;
  stats.slowest = collective_.RankOf(latest.member);
  stats.behind = latest.behind;
}

void CallStatsBuilder::FindMissing() {
  const std::uint64_t all = collective_.result_bytes();
  const auto results = static_cast<double>(result_bytes_);
  if (all > 0) stats.missing_results = 1.0 - results / static_cast<double>(all);
  if (result_bytes_ > 0) {
    const std::uint16_t each =
        HasReduceScatter(collective_.spec) ? collective_.layout.members() : 1;
    stats.missing_contributions = 1.0 - contributed_ / (results * each);
  }
}

}  // namespace optireduce
