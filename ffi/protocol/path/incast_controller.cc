#include "ffi/protocol/path/incast_controller.h"

#include <algorithm>

namespace optireduce {
namespace {

// Source: dynamic incast of the OptiReduce paper, whose exact rule is not public. Chosen: half
// after a loss that congestion control should have prevented. Less loss, with stages that time out,
// is that of links shared with other traffic, where a limit leaves links idle.
constexpr std::uint64_t kHeavyLossOneIn = 20;
// Chosen: one peer more after three calls without such a loss.
constexpr int kCleanCalls = 3;
// Small calls are assessed together. Chosen: 50 lost datagrams are no accident.
constexpr std::uint64_t kJudgedTogetherMin = 1000;

}  // namespace

void IncastController::HandleCall(std::uint64_t expected, std::uint64_t lost) {
  expected_ += expected;
  lost_ += lost;
  ++clean_calls_;
  if (expected_ < kJudgedTogetherMin) return;
  if (lost_ * kHeavyLossOneIn > expected_) {
    incast_ = std::max<std::uint8_t>(incast_ / 2, 1);
    clean_calls_ = 0;
  } else if (clean_calls_ >= kCleanCalls) {
    if (incast_ < most_) ++incast_;
    clean_calls_ = 0;
  }
  expected_ = 0;
  lost_ = 0;
}

}  // namespace optireduce
