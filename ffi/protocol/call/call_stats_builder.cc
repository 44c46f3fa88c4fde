#include "ffi/protocol/call/call_stats_builder.h"

namespace optireduce {

void CallStatsBuilder::FindLatest(Instant submitted_at, Instant now) {
  for (const MemberIndex member : collective_.others) {
    if (arrivals_.Absent(member)) stats.absent.push_back(collective_.RankOf(member));
  }
  const Arrivals::Latest latest = arrivals_.FindLatest(submitted_at, now);
  if (latest.behind == Duration::zero()) return;
  stats.slowest = collective_.RankOf(latest.member);
  stats.behind = latest.behind;
}

void CallStatsBuilder::FindMissing() {
  const BucketLayout& layout = collective_.layout;
  const auto results = static_cast<double>(result_bytes_);
  if (layout.bytes() > 0) {
    stats.missing_results = 1.0 - results / static_cast<double>(layout.bytes());
  }
  if (result_bytes_ > 0) {
    stats.missing_contributions = 1.0 - contributed_ / (results * layout.members());
  }
}

}  // namespace optireduce
