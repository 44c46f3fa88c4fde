// The distribution of the data over latency: weights by time, 16 bins for every doubling, so that a
// quantile is known to 6 %. Its size is fixed, and it allocates nothing.

#ifndef FFI_PROTOCOL_DEADLINE_LATENCY_HISTOGRAM_H_
#define FFI_PROTOCOL_DEADLINE_LATENCY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "ffi/base/log_scale.h"
#include "ffi/base/time.h"

namespace optireduce {

class LatencyHistogram {
 public:
  void Add(Duration latency, double weight) {
    bins_[BinOf(latency)] += static_cast<float>(weight);
    total_ += weight;
  }

  void Add(const LatencyHistogram& other) {
    for (std::size_t bin = 0; bin < kBins; ++bin) bins_[bin] += other.bins_[bin];
    total_ += other.total_;
  }

  // Keeps the part `kept` (0 to 1) of every weight.
  void Fade(double kept) {
    total_ = 0;
    for (float& weight : bins_) {
      weight *= static_cast<float>(kept);
      if (weight < kNegligible) weight = 0;
      total_ += weight;
    }
  }

  // Discards latencies beyond `latency` by more than the width of a bin.
  void ForgetBeyond(Duration latency) {
    total_ -= WeightBeyond(latency);
    std::fill(bins_.begin() + static_cast<std::ptrdiff_t>(BinOf(latency) + 1), bins_.end(), 0.0f);
  }

  void Clear() { *this = {}; }

  // The shortest time that less than `share` (above 0) of the weight exceeds, rounded up to the end
  // of its bin; zero if empty.
  Duration ExceededBy(double share) const {
    double beyond = 0;
    for (std::size_t bin = kBins; bin-- > 0;) {
      beyond += bins_[bin];
      if (bins_[bin] > 0 && beyond >= share * total_) return EndOf(bin);
    }
    return Duration(0);
  }

  // The weight of latencies beyond `latency` by more than the width of a bin.
  double WeightBeyond(Duration latency) const {
    double beyond = 0;
    for (std::size_t bin = BinOf(latency) + 1; bin < kBins; ++bin) beyond += bins_[bin];
    return beyond;
  }

  double total() const { return total_; }

 private:
  static constexpr int kBits = 4;  // Chosen: bins of 3 to 6 %, well below the noise of latencies.
  // Chosen: from 16 us, less than waking a thread takes, to 69 s, longer than any call may last.
  static constexpr std::uint64_t kFinestNs = std::uint64_t{1} << 14;
  static constexpr std::uint64_t kLongestNs = std::uint64_t{1} << 36;
  static constexpr std::uint32_t kFirst = LogStep<kBits>(kFinestNs);

 public:
  static constexpr std::size_t kBins = LogStep<kBits>(kLongestNs) - kFirst;
  double weight(std::size_t bin) const { return bins_[bin]; }
  // The last instant of the bin.
  static Duration EndOf(std::size_t bin) {
    const auto next = static_cast<std::uint32_t>(bin + 1 + kFirst);
    return Duration(static_cast<std::int64_t>(LogStepBegin<kBits>(next)) - 1);
  }

 private:
  // Chosen: a millionth of one source's data in a call; keeps denormal numbers away.
  static constexpr float kNegligible = 1e-6f;

  static std::size_t BinOf(Duration latency) {
    const std::int64_t ns = std::clamp<std::int64_t>(latency.count(), kFinestNs, kLongestNs - 1);
    return LogStep<kBits>(static_cast<std::uint64_t>(ns)) - kFirst;
  }

  std::array<float, kBins> bins_{};
  double total_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DEADLINE_LATENCY_HISTOGRAM_H_
