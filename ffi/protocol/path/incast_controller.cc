#include "ffi/protocol/path/incast_controller.h"

#include <algorithm>

namespace optireduce {
namespace {

// Source: dynamic incast of the OptiReduce paper, whose exact rule is not public. Chosen: half
// after stages that time out with a loss of more than 0.1 %, one more after three calls without.
constexpr std::uint64_t kLossOneIn = 1000;
constexpr int kCleanCalls = 3;
// Half without a timeout. Chosen: a loss that congestion control should have prevented. A loss of a
// tenth of a per cent alone is not enough: in two simulated networks 8 ranks that sent to one peer
// each took 1.2 and 1.7 times as long as without a limit, and lost less in only one of them.
constexpr std::uint64_t kHeavyLossOneIn = 20;
// Small calls are assessed together. Chosen: one lost datagram must not exceed 0.1 %.
constexpr std::uint64_t kJudgedTogetherMin = 1000;

}  // namespace

void IncastController::HandleCall(std::uint64_t expected, std::uint64_t lost,
                                  std::uint64_t timeouts) {
  expected_ += expected;
  lost_ += lost;
  ++clean_calls_;
  const bool judged = expected_ >= kJudgedTogetherMin;
  if ((timeouts > 0 && lost_ * kLossOneIn > expected_) ||
      (judged && lost_ * kHeavyLossOneIn > expected_)) {
    incast_ = std::max<std::uint8_t>(incast_ / 2, 1);
    clean_calls_ = 0;
  } else if (judged && clean_calls_ >= kCleanCalls) {
    if (incast_ < most_) ++incast_;
    clean_calls_ = 0;
  } else if (!judged) {
    return;
  }
  expected_ = 0;
  lost_ = 0;
}

}  // namespace optireduce
