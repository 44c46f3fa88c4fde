// The events of a run, in order: as a hash, for comparisons of runs, and as lines of text.

#ifndef FFI_SIM_TRACE_H_
#define FFI_SIM_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string_view>

#include "ffi/base/ids.h"
#include "ffi/base/prng.h"
#include "ffi/base/time.h"

namespace optireduce {

class Trace {
 public:
  // Lines go to `out`, unless it is null.
  explicit Trace(std::ostream* out) : out_(out) {}

  // One action of a rank, with a number that distinguishes actions of its kind.
  void Act(Instant now, Rank rank, std::string_view what, std::uint64_t detail,
           std::string_view text = {});
  // A transmission: "sends to" the peer, or "gets" from it.
  void Datagram(Instant now, Rank rank, std::string_view what, Rank peer,
                std::span<const std::byte> datagram);

  std::uint64_t hash() const { return hash_; }

 private:
  void Add(std::uint64_t value) { hash_ = Mix(hash_ ^ value) + 0x9E3779B97F4A7C15ull; }
  void Add(Instant now) { Add(static_cast<std::uint64_t>(now.time_since_epoch().count())); }
  void Print(Instant now, Rank rank, std::string_view what);

  std::ostream* out_;
  std::uint64_t hash_ = 0;
};

}  // namespace optireduce

#endif  // FFI_SIM_TRACE_H_
