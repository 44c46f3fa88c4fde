#include "ffi/runtime/collective_totals.h"

#include <algorithm>

namespace optireduce {
namespace {

std::size_t DurationBin(Duration duration) {
  // The end of a bin belongs to it.
  const auto below = static_cast<std::uint64_t>(std::max(duration.count(), Duration::rep{1}) - 1);
  const auto end = static_cast<std::uint64_t>(DurationBinEnd(0).count());
  if (below < end) return 0;
  return std::min<std::size_t>(LogStep<1>(below) - LogStep<1>(end) + 1, kDurationBins - 1);
}

}  // namespace

void CollectiveTotals::Add(const CallRecord& call) {
  CallTotals* const found = totals_.FindOrAdd(call.collective);
  CallTotals& totals = found != nullptr ? *found : others_;
  ++totals.calls[DurationBin(call.elapsed)];
  totals.elapsed += call.elapsed;
  totals.bytes += call.bytes;
  totals.missing_contributions += call.stats.missing_contributions;
}

std::vector<std::pair<std::string, CallTotals>> CollectiveTotals::Values() const {
  std::vector<std::pair<std::string, CallTotals>> values(totals_.values().begin(),
                                                         totals_.values().end());
  if (std::ranges::any_of(others_.calls, [](std::uint64_t calls) { return calls > 0; })) {
    values.emplace_back("(others)", others_);
  }
  return values;
}

}  // namespace optireduce
