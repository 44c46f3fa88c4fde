#include "ffi/protocol/collective/format_controller.h"

namespace optireduce {
namespace {

// Source: the sizes of the formats.
constexpr double kSavedShare =
    1 - static_cast<double>(EncodedBytes(FormatController::kRounded, kBlockValues)) /
            static_cast<double>(EncodedBytes(WireFormat::kFloat32, kBlockValues));

// Processor time for the rounding of a byte of the bucket, in nanoseconds.
// Source: docs/wire-formats.md: 0.8 s per GB in two processes.
constexpr double kRoundingNsPerByte = 0.4;
// Chosen: the processor has other work as well.
constexpr double kRoundingMargin = 2;

// The least part of the period that rounding must save, at the begin and after it.
// Chosen: a step with 30 buckets that exchanges data for two thirds of its time saves that much by
// each of them.
constexpr double kWorthOneIn = 64;
constexpr double kStillWorthOneIn = 128;

// Calls that must agree. Chosen: one stall of a path does not change the format.
constexpr int kConfirmations = 5;
// Chosen: the weight of the newest call in the average; a single long one changes it little.
constexpr int kPeriodMemory = 8;

}  // namespace

WireFormat FormatController::Choose(Instant now, Duration wire_time, std::uint64_t bytes) {
  if (opened_at_) {
    const Duration interval = now - *opened_at_;
    period_ = period_ == Duration(0) ? interval : period_ + (interval - period_) / kPeriodMemory;
  }
  opened_at_ = now;
  const bool rounds = format_ == kRounded;
  contrary_ = Pays(wire_time, bytes) == rounds ? 0 : contrary_ + 1;
  if (contrary_ >= kConfirmations) {
    format_ = rounds ? WireFormat::kFloat32 : kRounded;
    contrary_ = 0;
  }
  return format_;
}

bool FormatController::Pays(Duration wire_time, std::uint64_t bytes) const {
  if (period_ == Duration(0)) return false;
  const double saved = kSavedShare * Nanoseconds(wire_time);
  const double rounding = kRoundingMargin * kRoundingNsPerByte * static_cast<double>(bytes);
  const double part = format_ == kRounded ? kStillWorthOneIn : kWorthOneIn;
  return saved > rounding && part * saved > Nanoseconds(period_);
}

}  // namespace optireduce
