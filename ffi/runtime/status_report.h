// The state of a process for `python -m jax_optireduce status`, and its text.

#ifndef FFI_RUNTIME_STATUS_REPORT_H_
#define FFI_RUNTIME_STATUS_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/session/peer_report.h"
#include "ffi/runtime/call_monitor.h"
#include "ffi/runtime/flight_recorder.h"

namespace optireduce {

// The version of the text: a reader refuses another one. Chosen: counted from 1.
inline constexpr int kStatusVersion = 1;

// Calls in one report; the others are counted.
// Chosen: a report of a thousand buckets would hide the oldest, which is the one to look at.
inline constexpr std::size_t kCallsInReport = 64;

struct StatusReport {
  std::int64_t process = 0;  // its id
  Rank rank;
  std::uint16_t world_size = 1;
  std::uint32_t session = 0;
  Instant at;
  std::vector<Rank> members;              // ranks that were not removed
  std::vector<CallRecord> calls;          // calls under way, oldest first
  std::optional<CallRecord> last_ended;   // the newest call that has ended
  std::vector<DevicesEvent> devices;      // calls that some devices have not started
  std::vector<PeerReport> peers;          // one for each other rank
  std::vector<std::uint16_t> mute_lanes;  // lanes whose threads have not answered
};

// One JSON object. Names of programs and peers may hold invalid UTF-8, which stays as it is.
std::string ToJson(const StatusReport& report);

}  // namespace optireduce

#endif  // FFI_RUNTIME_STATUS_REPORT_H_
