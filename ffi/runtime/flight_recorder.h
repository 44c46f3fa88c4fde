// The newest calls of a process, for the analysis of a call that does not end: its identity, its
// start and the calls before it. A bounded ring, without allocations after its first turn.
//
// Reads no clock. Not thread-safe: CallMonitor guards it.

#ifndef FFI_RUNTIME_FLIGHT_RECORDER_H_
#define FFI_RUNTIME_FLIGHT_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Calls retained.
// Chosen: a minute of a program with 60 calls a second. About 2 MB.
inline constexpr std::size_t kFlightRecords = 4096;

struct CallRecord {
  enum class State : std::uint8_t { kUnderWay, kDone, kFailed };

  std::uint64_t number = 0;  // the call's number in this process, from 1
  std::string collective;    // its name
  std::string description;   // name, dtype, shapes, mode
  std::string_view mode;     // a literal
  bool drain = false;
  Sequence sequence;        // the number at its end, with the skipped calls of its session
  std::uint64_t bytes = 0;  // size of the bucket
  bool defers = false;      // its late data joins a later call, and is not of values
  bool spares = false;      // it ends without its last members, by a quorum
  Instant started;
  Duration started_unix{};  // time since the epoch
  State state = State::kUnderWay;
  Duration elapsed{};  // its duration at the end
  std::string error;   // first bytes of the error, if the call failed
  CallStats stats;     // meaningful once the call has ended
  // The ranks that a call that is open for long waits for, and those without any data for it.
  std::vector<Rank> waiting_for;
  std::vector<Rank> absent;
  bool told = false;  // the stall was reported
};

class FlightRecorder {
 public:
  explicit FlightRecorder(std::size_t capacity = kFlightRecords);

  // Returns the number of the call.
  std::uint64_t Begin(const Submission& submission, Instant now, Duration unix_time);
  // Null if newer calls have replaced the record.
  const CallRecord* End(std::uint64_t number, Instant now, const Status& status,
                        const CallStats& stats);

  // Oldest first.
  std::vector<CallRecord> Records() const;
  // The open calls among them, oldest first.
  std::vector<CallRecord> OpenRecords() const;
  // The newest call that has ended, if any.
  std::optional<CallRecord> LastEnded() const;

  // Open calls.
  std::size_t under_way() const { return under_way_; }
  // The oldest open call that was not reported, or null.
  const CallRecord* OldestUntold() const;
  // Marks all open calls as reported.
  void TellAll();

 private:
  CallRecord& At(std::uint64_t number) { return records_[number % records_.size()]; }
  const CallRecord& At(std::uint64_t number) const { return records_[number % records_.size()]; }
  std::uint64_t Oldest() const;

  std::vector<CallRecord> records_;  // a ring, indexed by number
  std::uint64_t next_ = 1;
  std::size_t under_way_ = 0;
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_FLIGHT_RECORDER_H_
