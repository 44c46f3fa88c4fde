// The last field of the header of a contribution where late data is deferred.

#ifndef FFI_PROTOCOL_WIRE_SENDER_INFO_H_
#define FFI_PROTOCOL_WIRE_SENDER_INFO_H_

#include <algorithm>
#include <cstdint>

#include "ffi/base/log_scale.h"
#include "ffi/base/time.h"

namespace optireduce {

struct SenderInfo {
  // Calls directly before this one of which the sender has every result of the receiver; at most
  // kCallsMax, more are cut.
  std::uint32_t calls_with_results = 0;
  // The time from the sender's call to the sending of this, rounded down by 3 % or 1 us.
  Duration since_call{};

  // Chosen: 6 bits; later contributions name earlier calls too.
  static constexpr std::uint32_t kCallsMax = 63;
};

namespace sender_note {

// Chosen: 32 steps for every doubling, from 1 us; 10 bits reach half an hour.
inline constexpr int kStepBits = 5;
inline constexpr std::uint32_t kTimeBits = 10;
inline constexpr std::uint32_t kTimeMax = (1U << kTimeBits) - 1;
inline constexpr std::int64_t kUnitNs = 1000;

}  // namespace sender_note

constexpr std::uint16_t EncodeSenderInfo(const SenderInfo& note) {
  using namespace sender_note;
  const std::uint32_t calls = std::min(note.calls_with_results, SenderInfo::kCallsMax);
  const auto units =
      static_cast<std::uint64_t>(std::max<std::int64_t>(note.since_call.count() / kUnitNs, 0));
  return static_cast<std::uint16_t>(calls << kTimeBits |
                                    std::min(LogStep<kStepBits>(units), kTimeMax));
}

constexpr SenderInfo DecodeSenderInfo(std::uint16_t code) {
  using namespace sender_note;
  const auto units = static_cast<std::int64_t>(LogStepBegin<kStepBits>(code & kTimeMax));
  return {.calls_with_results = static_cast<std::uint32_t>(code) >> kTimeBits,
          .since_call = Duration(units * kUnitNs)};
}

}  // namespace optireduce

#endif  // FFI_PROTOCOL_WIRE_SENDER_INFO_H_
