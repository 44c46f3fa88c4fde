// Phrases that the errors of a session have in common.

#ifndef FFI_PROTOCOL_SESSION_ERROR_TEXT_H_
#define FFI_PROTOCOL_SESSION_ERROR_TEXT_H_

#include <chrono>
#include <string>

#include "ffi/base/time.h"
#include "ffi/protocol/options.h"

namespace optireduce {

// "1.5 s"; with one decimal.
inline std::string RoundedSeconds(Duration duration) {
  const auto tenths = duration / std::chrono::milliseconds(100);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

// " on lane 1", where a rank has several lanes.
inline std::string OnLane(const EndpointOptions& options) {
  return options.lanes > 1 ? " on lane " + std::to_string(options.lane) : "";
}

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_ERROR_TEXT_H_
