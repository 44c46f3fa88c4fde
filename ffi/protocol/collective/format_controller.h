// The wire format of the calls of a collective with WireFormat::kAuto. Data is rounded while the
// network limits the calls: while the bytes that rounding saves take longer than the rounding, and
// are a noticeable part of the time between two calls. Each sender decides for its own data, and a
// datagram shows its format, so that ranks need no agreement.

#ifndef FFI_PROTOCOL_COLLECTIVE_FORMAT_CONTROLLER_H_
#define FFI_PROTOCOL_COLLECTIVE_FORMAT_CONTROLLER_H_

#include <cstdint>
#include <optional>

#include "ffi/base/time.h"
#include "ffi/codec/wire_format.h"

namespace optireduce {

class FormatController {
 public:
  // Chosen: the fewest bytes without an error that a training notices: those of kFloat4 are for
  // programs that ask for it.
  static constexpr WireFormat kRounded = WireFormat::kInt8;

  // A call opens. `wire_time`: the time that its data takes at the measured rates as float32, zero
  // where no rate limits it; `bytes`: of its bucket, as float32. Returns the format of its data.
  WireFormat Choose(Instant now, Duration wire_time, std::uint64_t bytes);
  // The format of the newest call.
  WireFormat format() const { return format_; }

 private:
  bool Pays(Duration wire_time, std::uint64_t bytes) const;

  WireFormat format_ = WireFormat::kFloat32;
  int contrary_ = 0;  // consecutive calls that speak for the other format
  std::optional<Instant> opened_at_;
  Duration period_{};  // average time between two calls
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_FORMAT_CONTROLLER_H_
