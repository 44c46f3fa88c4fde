#include "ffi/sim/run_log.h"

#include <chrono>
#include <utility>

namespace optireduce {

std::string Milliseconds(Duration duration) {
  return std::to_string(static_cast<double>(duration.count()) / 1e6) + " ms";
}

std::string SimCallRecord::Name() const {
  return "call " + std::to_string(call.index) + " of '" + collective.spec.description + "'";
}

RunLog::RunLog(const Scenario& of, const Workload& calls_of)
    : scenario(of), workload(calls_of), ranks(of.ranks), views(1) {
  LaneRecord lane;
  lane.asked.assign(of.ranks, kNever);
  lane.heard.assign(of.ranks, Instant{});
  lane.first_heard.assign(of.ranks, kNever);
  for (std::uint16_t rank = 0; rank < of.ranks; ++rank) {
    ranks[rank].lanes.assign(of.lanes, lane);
    if (!of.IsAbsent(Rank(rank))) views.front().push_back(Rank(rank));
  }
}

void RunLog::Fail(Instant now, Rank rank, const std::string& what) {
  if (!failure.empty()) return;
  failure =
      "at " + Milliseconds(now - Instant{}) + " rank " + std::to_string(rank.value()) + ": " + what;
}

void RunLog::RecordCall(Instant now, const SimCallRecord& record) {
  std::size_t& next = next_index_[{record.call.collective, record.rank.index()}];
  for (; next <= record.call.index; ++next) {
    Ready& ready = ready_[{record.call.collective, next}];
    ++ready.members;
    ready.at = now;
  }
}

RunLog::Ready RunLog::ReadyOf(SimCall call) const {
  const auto ready = ready_.find({call.collective, call.index});
  return ready == ready_.end() ? Ready{} : ready->second;
}

std::size_t RunLog::NextIndex(std::size_t collective, Rank rank) const {
  const auto next = next_index_.find({collective, rank.index()});
  return next == next_index_.end() ? 0 : next->second;
}

bool RunLog::IsSilentSince(Instant now, Instant heard) const {
  return now - heard >= std::chrono::microseconds(scenario.peer_timeout_us);
}

}  // namespace optireduce
