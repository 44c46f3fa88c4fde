// Time as a value. The protocol receives the time as an argument; only `ffi/net/clock.h` reads a
// clock, so nothing below the runtime can depend on its time of execution.

#ifndef FFI_BASE_TIME_H_
#define FFI_BASE_TIME_H_

#include <chrono>
#include <cstdint>

namespace optireduce {

using Duration = std::chrono::nanoseconds;

// A clock type without `now()`: `EngineClock::now()` does not compile, arithmetic does.
struct EngineClock {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<EngineClock>;
  static constexpr bool is_steady = true;
};

// Nanoseconds since an arbitrary origin; never negative.
using Instant = EngineClock::time_point;

inline constexpr Instant kNever = Instant::max();

// The sum, which saturates at kNever instead of overflowing.
constexpr Instant SaturatingAdd(Instant at, Duration by) {
  return at > kNever - by ? kNever : at + by;
}

constexpr double Nanoseconds(Duration duration) { return static_cast<double>(duration.count()); }

}  // namespace optireduce

#endif  // FFI_BASE_TIME_H_
