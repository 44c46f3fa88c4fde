#include "ffi/protocol/incast_controller.h"

#include <algorithm>

namespace optireduce {
namespace {

// Source: dynamic incast of the OptiReduce paper, whose exact rule is not public. Chosen: half at a
// loss of more than 0.1 %, one more after three clean calls.
constexpr std::uint64_t kLossOneIn = 1000;
constexpr int kCleanCalls = 3;
// Small calls are judged together. Chosen: one lost datagram must not be more than 0.1 %.
constexpr std::uint64_t kJudgedDatagramsMin = 1000;

}  // namespace

void IncastController::HandleCall(std::uint64_t expected, std::uint64_t lost,
                                  std::uint64_t timeouts) {
  expected_ += expected;
  lost_ += lost;
  ++clean_calls_;
  const bool judged = expected_ >= kJudgedDatagramsMin;
  if (timeouts > 0 || (judged && lost_ * kLossOneIn > expected_)) {
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
