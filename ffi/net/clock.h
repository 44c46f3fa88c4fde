// The one place that reads the operating system's clock.

#ifndef FFI_NET_CLOCK_H_
#define FFI_NET_CLOCK_H_

#include <chrono>

#include "ffi/base/time.h"

namespace optireduce {

// Monotonic: unaffected by steps of the wall clock.
inline Instant ClockNow() {
  return Instant(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace optireduce

#endif  // FFI_NET_CLOCK_H_
