// Logarithmic numbering of integers, without floating point: 2^kBits steps for every doubling, each
// of the same width, as in HDR histograms. Values below 2^(kBits + 1) are numbered exactly.

#ifndef FFI_BASE_LOG_SCALE_H_
#define FFI_BASE_LOG_SCALE_H_

#include <bit>
#include <cstdint>

namespace optireduce {

// The step that contains `value`. Monotone; a step is narrower than its values by 2^kBits.
template <int kBits>
constexpr std::uint32_t LogStep(std::uint64_t value) {
  const int width = static_cast<int>(std::bit_width(value));
  const int shift = width > kBits + 1 ? width - kBits - 1 : 0;
  return (static_cast<std::uint32_t>(shift) << kBits) + static_cast<std::uint32_t>(value >> shift);
}

// The smallest value of a step, for steps that LogStep can return.
template <int kBits>
constexpr std::uint64_t LogStepBegin(std::uint32_t step) {
  const std::uint32_t doublings = step >> kBits;
  if (doublings <= 1) return step;
  const std::uint32_t shift = doublings - 1;
  return std::uint64_t{step - (shift << kBits)} << shift;
}

}  // namespace optireduce

#endif  // FFI_BASE_LOG_SCALE_H_
