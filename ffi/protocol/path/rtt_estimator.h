// The smoothed round-trip time of a path and its variation (RFC 9002 5.3).

#ifndef FFI_PROTOCOL_PATH_RTT_ESTIMATOR_H_
#define FFI_PROTOCOL_PATH_RTT_ESTIMATOR_H_

#include <algorithm>
#include <optional>

#include "ffi/base/time.h"

namespace optireduce {

class RttEstimator {
 public:
  void Measure(Duration sample) {
    if (!smoothed_) {
      smoothed_ = sample;
      variation_ = sample / 2;
      return;
    }
    const Duration difference = std::max(*smoothed_ - sample, sample - *smoothed_);
    variation_ = (3 * variation_ + difference) / 4;
    smoothed_ = (7 * *smoothed_ + sample) / 8;
  }
  // Nothing before the first sample.
  const std::optional<Duration>& smoothed() const { return smoothed_; }
  // The time by which an answer has come, as a rule; a margin of at least `granularity` (RFC 9002
  // 6.2.1).
  Duration Longest(Duration granularity) const {
    return smoothed_.value_or(Duration{}) + std::max(4 * variation_, granularity);
  }

 private:
  std::optional<Duration> smoothed_;
  Duration variation_{};
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_RTT_ESTIMATOR_H_
