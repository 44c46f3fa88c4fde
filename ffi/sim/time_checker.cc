#include "ffi/sim/time_checker.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "ffi/protocol/collective/policy_traits.h"

namespace optireduce {
namespace {

using std::chrono::microseconds;

// Source: kPatienceMin and kFactor of answer_time.h.
constexpr Duration kPatienceMin = std::chrono::seconds(1);
constexpr int kPatienceFactor = 2;

Duration BothDeadlines(const CollectiveSpec& spec) {
  return spec.reduce_scatter_deadline + spec.all_gather_deadline;
}

}  // namespace

void TimeChecker::Check(Instant now, const SimCallRecord& record, const CallDone& done) {
  const Scenario& s = log_.scenario;
  CheckProgress(now, record);
  const Duration took = now - record.submitted_at;
  if (done.stats.elapsed > took || done.stats.elapsed + bounds_.DriverSlack() < took) {
    log_.Fail(now, record.rank,
              "a call took " + Milliseconds(took) + ", but its stats say " +
                  Milliseconds(done.stats.elapsed));
  }
  const CollectiveSpec& spec = record.collective.spec;
  if (record.collective.lossy()) {
    return CheckWithin(now, record, BothDeadlines(spec), "a lossy call", "its deadline");
  }
  if (s.call_timeout_us > 0 && record.WaitsForAll()) {
    CheckWithin(now, record, microseconds(s.call_timeout_us), "a call", "its limit");
  }
  if (!done.status.ok()) return;
  if (EndsByDeadline(spec) && !record.drain) {
    // It may wait for peers that are behind, or for their next call, which a driver may see late.
    const Duration lag =
        microseconds(s.peer_timeout_us) + (s.catches_up() ? bounds_.DriverSlack() : Duration{});
    CheckWithin(now, record, BothDeadlines(spec) + lag + bounds_.Agreement(), "a bounded call",
                "its bound");
    CheckLag(now, record);
  }
  CheckLiveness(now, record);
}

void TimeChecker::CheckWithin(Instant now, const SimCallRecord& record, Duration longest,
                              const char* subject, const char* rule) {
  // A rank that stands still ends nothing.
  const Duration still =
      IsFrozen(record.rank) ? microseconds(log_.scenario.freeze_for_us) : Duration{};
  const Duration bound = longest + bounds_.DriverSlack() + still;
  const Duration took = now - record.submitted_at;
  if (took <= bound) return;
  log_.Fail(now, record.rank,
            std::string(subject) + " took " + Milliseconds(took) + "; " + rule + " is " +
                Milliseconds(bound));
}

void TimeChecker::CheckLiveness(Instant now, const SimCallRecord& record) {
  const Instant from =
      std::max({WaitsFrom(now, record), bounds_.FaultsEnd(), bounds_.PathGivenUpBy()});
  liveness_worst_ = std::max(liveness_worst_, now - from);
  if (now <= from + bounds_.Liveness() + bounds_.Silence()) return;
  log_.Fail(now, record.rank,
            "a call ended " + Milliseconds(now - from) +
                " after it had to wait for the network only, and faults had ended; the bound is " +
                Milliseconds(bounds_.Liveness()));
}

void TimeChecker::CheckProgress(Instant now, const SimCallRecord& record) {
  const Instant from = std::max(std::exchange(progress_at_, now), bounds_.FaultsEnd());
  const Scenario& s = log_.scenario;
  if (computing_ > 0 || !s.catches_up() || !s.is_whole() || s.meet_calls > 0) return;
  const Duration deadlines = microseconds(s.reduce_scatter_deadline_us + s.all_gather_deadline_us);
  // A drain brings the late data of all calls.
  const Duration network = record.WaitsForAll() ? bounds_.Liveness() : bounds_.Lag();
  const Duration bound = deadlines + network + bounds_.Silence() + bounds_.DriverSlack();
  if (now <= from + bound) return;
  log_.Fail(now, record.rank,
            record.Name() + " ended " + Milliseconds(now - from) +
                " after all programs had come to wait in calls; the bound is " +
                Milliseconds(bound));
}

void TimeChecker::RecordAnswer(LaneRecord& lane, Duration gap) {
  const Duration patience = std::max(kPatienceMin, kPatienceFactor * lane.longest_answer);
  lane.longest_answer = std::max(lane.longest_answer, std::min(gap, patience));
}

bool TimeChecker::IsFrozen(Rank rank) const {
  return log_.scenario.freeze_at_us > 0 && rank.value() == log_.scenario.freeze_rank;
}

std::array<TimeChecker::Outage, 4> TimeChecker::OutagesOf(Rank from, Rank rank) const {
  const Scenario& s = log_.scenario;
  const auto either = [&](std::uint64_t who) { return rank.index() == who || from.index() == who; };
  const auto outage = [](bool exists, std::uint64_t at_us, std::uint64_t for_us) {
    return exists ? Outage{At(at_us), At(at_us + for_us)} : Outage{};
  };
  Outage parted = outage(s.part_for_us > 0, s.part_at_us, s.part_for_us);
  // A rank of the same side hears it, but data may have to wait for the other side.
  if (((s.part_side >> rank.index() ^ s.part_side >> from.index()) & 1) == 0) parted.from = kNever;
  return {
      outage(IsFrozen(rank), s.freeze_at_us, s.freeze_for_us),
      outage(s.cut_at_us > 0 && either(s.cut_rank), s.cut_at_us, s.cut_for_us),
      outage(s.lane_cut_at_us > 0 && either(s.lane_cut_rank), s.lane_cut_at_us, s.lane_cut_for_us),
      parted};
}

Instant TimeChecker::AwayFrom(Rank from, Rank rank) const {
  const RankRecord& seen = log_.ranks[rank.index()];
  Instant at = std::min(seen.stopped_at.value_or(kNever), seen.left_at.value_or(kNever));
  for (const Outage& outage : OutagesOf(from, rank)) at = std::min(at, outage.from);
  return at;
}

Instant TimeChecker::BackAt(Rank from, Rank rank) const {
  const RankRecord& seen = log_.ranks[rank.index()];
  if (seen.stopped_at || seen.left_at) return kNever;
  Instant at{};
  for (const Outage& outage : OutagesOf(from, rank)) at = std::max(at, outage.until);
  return at;
}

Instant TimeChecker::LeftBehindBy(const SimCallRecord& record, Rank member, Instant away) const {
  const Duration peer_timeout = microseconds(log_.scenario.peer_timeout_us);
  Duration patience = kPatienceMin;
  for (const LaneRecord& lane : log_.ranks[record.rank.index()].lanes) {
    // The usual response time was unknown then: Peer::Patience.
    if (lane.first_heard[member.index()] >= away) patience = peer_timeout;
    patience = std::max(patience, kPatienceFactor * lane.longest_answer);
  }
  // Once it answers again, only the network is waited for.
  return std::min(away + std::min(patience, peer_timeout), BackAt(record.rank, member));
}

void TimeChecker::AddWait(Instant now, const SimCallRecord& record, Rank member, std::size_t index,
                          Wait& wait) const {
  const bool called = log_.NextIndex(record.call.collective, member) > index;
  const Instant away = AwayFrom(record.rank, member);
  if (!called) {
    // The program of a rank that is behind, and answers, is slow.
    const Instant slow_from = away > now ? Instant{} : BackAt(record.rank, member);
    wait.slow_from = std::min(wait.slow_from, slow_from);
  }
  if (away <= now) wait.from = std::max(wait.from, LeftBehindBy(record, member, away));
}

Instant TimeChecker::PassesFrom(SimCall call) const {
  const RunLog::Ready ready = log_.ReadyOf(call);
  const Scenario& s = log_.scenario;
  if (ready.members == 0 || s.mtu_at_us == 0) return ready.at;
  // A rank behind a path that loses long datagrams answers, until that is given up.
  return std::max(ready.at, At(s.mtu_at_us)) + microseconds(s.peer_timeout_us);
}

void TimeChecker::CheckLag(Instant now, const SimCallRecord& record) {
  const Scenario& s = log_.scenario;
  // If programs skip calls, others may wait for such a rank.
  if (s.catches_up() || s.skip_ppm > 0 || IsFrozen(record.rank)) return;
  const CollectiveSpec& spec = record.collective.spec;
  const std::size_t ahead = bounds_.CallsAhead();
  const std::size_t index = record.call.index < ahead ? 0 : record.call.index - ahead;
  Wait wait;
  for (const Rank member : spec.members) {
    if (member != record.rank) AddWait(now, record, member, index, wait);
  }
  const Instant from = std::max(
      {record.submitted_at + BothDeadlines(spec), At(s.faults_end_us), At(s.cross_traffic_end_us()),
       wait.from, PassesFrom({.collective = record.call.collective, .index = index})});
  const Duration bound = bounds_.Lag() + bounds_.Agreement() + bounds_.DriverSlack();
  if (std::min(now, wait.slow_from) <= from + bound) return;
  log_.Fail(now, record.rank,
            "a bounded call ended " + Milliseconds(now - from) +
                " after it had to wait for no peer that answers; the bound is " +
                Milliseconds(bound));
}

Instant TimeChecker::WaitsFrom(Instant now, const SimCallRecord& record) const {
  const SimCall call = record.call;
  const CollectiveSpec& spec = record.collective.spec;
  if (!RetainsLateData(spec) || record.drain) return log_.ReadyOf(call).at;
  if (log_.scenario.catches_up() && OutlivesMembers(spec)) {
    // The call may wait for the next call of the others.
    return record.submitted_at + BothDeadlines(spec) + microseconds(log_.scenario.peer_timeout_us);
  }
  // Others may wait for a rank that has skipped calls until it is given up.
  if (log_.scenario.skip_ppm > 0 && EndsByDeadline(spec)) return now;
  // A rank takes data of calls that its program has not made, of max_lag at most; where it is late
  // for long, these may be later ones than this.
  const std::size_t ahead = bounds_.CallsAhead();
  const Instant from = record.submitted_at + BothDeadlines(spec);
  if (call.index < ahead) return from;
  const RunLog::Ready ready =
      log_.ReadyOf({.collective = call.collective, .index = call.index - ahead});
  if (ready.members < spec.members.size()) return now;
  // A stopped rank may not have announced its last calls.
  const Instant told = ready.at + bounds_.Liveness();
  const bool stopped = std::ranges::any_of(spec.members, [&](Rank member) {
    return log_.ranks[member.index()].stopped_at.value_or(told) < told;
  });
  return stopped ? now : std::max(from, ready.at);
}

}  // namespace optireduce
