#include "ffi/runtime/flight_recorder.h"

#include <algorithm>

#include "ffi/base/check.h"
#include "ffi/protocol/collective/policy_traits.h"

namespace optireduce {
namespace {

// Bytes retained of an error.
// Chosen: the first lines hold rank, call and reason.
constexpr std::size_t kErrorBytesMax = 400;

}  // namespace

FlightRecorder::FlightRecorder(std::size_t capacity) : records_(capacity) {
  OR_CHECK(capacity > 0);
}

std::uint64_t FlightRecorder::Begin(const Submission& submission, Instant now, Duration unix_time) {
  const std::uint64_t number = next_++;
  CallRecord& record = At(number);
  if (record.number != 0 && record.state == CallRecord::State::kUnderWay) --under_way_;
  record.number = number;
  // Assignments reuse the memory of the strings.
  record.collective.assign(submission.spec.name);
  record.description.assign(submission.spec.description);
  record.error.clear();
  record.sequence = submission.sequence;
  record.mode = ModeOf(submission.spec);
  record.drain = submission.drain;
  record.bytes = submission.spec.elements * SizeOf(submission.spec.element_type);
  record.defers = RetainsLateData(submission.spec) && !HoldsValues(submission.spec);
  record.spares = submission.quorum.spare > 0;
  record.started = now;
  record.started_unix = unix_time;
  record.state = CallRecord::State::kUnderWay;
  record.elapsed = {};
  record.stats = {};
  record.told = false;
  ++under_way_;
  return number;
}

const CallRecord* FlightRecorder::End(std::uint64_t number, Instant now, const Status& status,
                                      const CallStats& stats) {
  CallRecord& record = At(number);
  if (record.number != number) return nullptr;
  OR_CHECK(record.state == CallRecord::State::kUnderWay);
  --under_way_;
  record.state = status.ok() ? CallRecord::State::kDone : CallRecord::State::kFailed;
  record.elapsed = now - record.started;
  record.error.assign(status.message(), 0, kErrorBytesMax);
  record.stats = stats;
  // A call that never began has no number.
  record.sequence = std::max(record.sequence, stats.number);
  return &record;
}

std::uint64_t FlightRecorder::Oldest() const {
  return next_ > records_.size() ? next_ - records_.size() : 1;
}

std::vector<CallRecord> FlightRecorder::Records() const {
  std::vector<CallRecord> records;
  for (std::uint64_t number = Oldest(); number < next_; ++number) records.push_back(At(number));
  return records;
}

std::vector<CallRecord> FlightRecorder::OpenRecords() const {
  std::vector<CallRecord> records;
  for (std::uint64_t number = next_; number > Oldest() && records.size() < under_way_; --number) {
    const CallRecord& record = At(number - 1);
    if (record.state == CallRecord::State::kUnderWay) records.push_back(record);
  }
  std::ranges::reverse(records);
  return records;
}

std::optional<CallRecord> FlightRecorder::LastEnded() const {
  for (std::uint64_t number = next_; number > Oldest(); --number) {
    const CallRecord& record = At(number - 1);
    if (record.state != CallRecord::State::kUnderWay) return record;
  }
  return std::nullopt;
}

const CallRecord* FlightRecorder::OldestUntold() const {
  if (under_way_ == 0) return nullptr;
  for (std::uint64_t number = Oldest(); number < next_; ++number) {
    const CallRecord& record = At(number);
    if (record.state == CallRecord::State::kUnderWay && !record.told) return &record;
  }
  return nullptr;
}

void FlightRecorder::TellAll() {
  for (std::uint64_t number = Oldest(); number < next_; ++number) {
    CallRecord& record = At(number);
    if (record.state == CallRecord::State::kUnderWay) record.told = true;
  }
}

}  // namespace optireduce
