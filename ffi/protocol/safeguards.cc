#include "ffi/protocol/safeguards.h"

#include "ffi/base/check.h"

namespace optireduce {
namespace {

// Chosen: as the paper is described, which prints no figure: on above 2 %, off after 100 calls
// below 1 %.
constexpr double kHadamardOnLoss = 0.02;
constexpr double kHadamardOffLoss = 0.01;
constexpr std::size_t kHadamardOffCalls = 100;

// Chosen: as the paper is described, which prints no figure: 3 skipped of 20 calls, 5 of 20, 50 in
// a row.
constexpr std::size_t kSkipsToRecalibrate = 3;
constexpr std::size_t kSkipsToReliable = 5;
constexpr std::size_t kSkipsToCallUser = 50;

}  // namespace

void HadamardSwitch::EndCall(double loss) {
  OR_CHECK(loss >= 0 && loss <= 1);
  quiet_calls_ = loss < kHadamardOffLoss ? quiet_calls_ + 1 : 0;
  if (loss > kHadamardOnLoss) on_ = true;
  if (quiet_calls_ >= kHadamardOffCalls) on_ = false;
}

SkipPolicy::SkipPolicy(double missing_max) : missing_max_(missing_max) {
  OR_CHECK(missing_max >= 0 && missing_max <= 1);
}

SafeguardDecision SkipPolicy::EndCall(double missing) {
  OR_CHECK(missing >= 0 && missing <= 1);
  const bool skip = missing > missing_max_;
  const std::size_t before = skipped_.count();
  skipped_ <<= 1;
  skipped_.set(0, skip);
  const std::size_t skips = skipped_.count();
  skips_in_a_row_ = skip ? skips_in_a_row_ + 1 : 0;

  SafeguardDecision decision{.skip = skip};
  if (skips_in_a_row_ > 0 && skips_in_a_row_ % kSkipsToCallUser == 0) {
    decision.action = SafeguardAction::kCallUser;
  } else if (skips >= kSkipsToReliable) {
    // Until the window has passed: one reliable call does not make the network better.
    decision.action = SafeguardAction::kReliable;
  } else if (skips >= kSkipsToRecalibrate && before < kSkipsToRecalibrate) {
    decision.action = SafeguardAction::kRecalibrate;
  }
  return decision;
}

}  // namespace optireduce
