#include "ffi/sim/checker.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "ffi/sim/call_values.h"
#include "ffi/sim/setup.h"

namespace optireduce {

Submission Checker::Begin(Instant now, Rank rank, SimCall call) {
  SimCallRecord record{
      .rank = rank,
      .call = call,
      .collective = log_.workload.CollectiveAt(call.collective, rank),
      .leaves = {},
      .values = {},
      .submitted_at = now,
      .live = {},
      .parts = std::vector<std::optional<SimCallRecord::Part>>(log_.scenario.lanes),
      .owed = std::vector<bool>(log_.scenario.lanes)};
  record.drain = log_.workload.IsDrain(record.collective, call);
  if (record.drain) steps_.RecordDrain();
  Submission submission{.spec = record.collective.NamedSpec(),
                        .sequence = log_.workload.SequenceOf(call),
                        .leaves = leaves_.MakeLeaves(now, record),
                        .drain = record.drain,
                        .averages = log_.scenario.means != 0,
                        .quorum = log_.workload.QuorumOf(record.collective),
                        .token = log_.calls.size()};
  // The endpoint holds pointers into the leaves, which moving a record must not change.
  static_assert(std::is_nothrow_move_constructible_v<SimCallRecord>);
  log_.calls.push_back(std::move(record));
  return submission;
}

void Checker::Submitted(Instant now, std::uint64_t token, const Status& status) {
  SimCallRecord& record = log_.calls[token];
  if (!status.ok()) return errors_.Check(now, record, status);
  record.submitted = true;
  times_.RecordCall(now);
  log_.RecordCall(now, record);
}

void Checker::GaveUp(Instant now, Rank rank, SimCall call) {
  Cancelled(now, rank);
  log_.given_up.emplace(call.collective, call.index);
}

SimCallRecord* Checker::FindCall(Instant now, Rank rank, std::uint64_t token) {
  if (token < log_.calls.size() && log_.calls[token].rank == rank) return &log_.calls[token];
  Fail(now, rank, "a call ended that it never made");
  return nullptr;
}

void Checker::PartDone(Instant now, Rank rank, std::uint16_t lane, std::uint64_t token,
                       const CallDone& part) {
  SimCallRecord* record = FindCall(now, rank, token);
  if (record == nullptr) return;
  LaneRecord& seen = log_.ranks[rank.index()].lanes[lane];
  ++(part.status.ok() ? seen.completed : seen.failed);
  if (!part.status.ok()) return;
  record->owed[lane] = part.stats.missing_results == 1 && part.stats.in_flight == 1;
  const SimCallRecord::Part ended{
      .number = part.stats.number, .live = part.stats.live, .passed = part.stats.passed};
  for (const auto& other : record->parts) {
    if (!other || other->number != ended.number || other->live == ended.live) continue;
    if (other->passed || ended.passed) continue;
    return Fail(now, rank,
                "the part on lane " + std::to_string(lane) + " of " + record->Name() + " has " +
                    std::to_string(ended.live) + " live members, another part " +
                    std::to_string(other->live));
  }
  record->parts[lane] = ended;
}

void Checker::Done(Instant now, Rank rank, const CallDone& done) {
  SimCallRecord* record = FindCall(now, rank, done.token);
  if (record == nullptr) return;
  if (record->done || !record->submitted) {
    return Fail(now, rank, "a call ended twice, or after it was refused");
  }
  record->done = true;
  record->done_at = now;
  const std::vector<std::byte> bucket = leaves_.EndCall(now, *record);
  if (!failure().empty()) return;
  times_.Check(now, *record, done);
  steps_.Check(now, *record, done);
  if (done.status.code() == StatusCode::kCancelled) {
    log_.given_up.emplace(record->call.collective, record->call.index);
  }
  if (!done.status.ok()) return errors_.Check(now, *record, done.status);
  record->live = done.stats.live;
  record->whole = IsWhole(done.stats);
  results_.Check(now, *record, bucket, done.stats);
}

void Checker::Driven(Instant now, Rank node, const Endpoint& endpoint) {
  traffic_.Driven(now, node, endpoint);
  if (log_.scenario.removable() == 0 && log_.scenario.absent == 0) return;
  removals_.RecordView(now, RankOf(log_.scenario, node), endpoint.live());
}

void Checker::FailOpenCalls(Instant now) {
  for (const SimCallRecord& record : log_.calls) {
    if (log_.HasStopped(record.rank) || !record.submitted || record.done) continue;
    Fail(now, record.rank,
         record.Name() + " never ended; it was made at " +
             Milliseconds(record.submitted_at - Instant{}));
  }
}

void Checker::Finish(Instant now, const Network& network) {
  FailOpenCalls(now);
  leaves_.Finish(now);
  traffic_.Finish(now, network);
  removals_.Finish(now);
}

}  // namespace optireduce
