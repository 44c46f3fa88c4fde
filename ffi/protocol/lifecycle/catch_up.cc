#include "ffi/protocol/lifecycle/catch_up.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ffi/protocol/detectors/mismatch_detector.h"

namespace optireduce {
namespace {

// Chosen: the programs of ranks in step differ by less, and a rank that others wait for outside of
// the session loses no more.
constexpr int kIntervalsPerBriefWait = 16;

}  // namespace

template <typename Visit>
void CatchUp::ForEachOpen(const Collective& origin, Visit visit) const {
  session_.directory.ForEach([&](const Collective& collective) {
    if (&collective.Origin() != &origin) return;
    std::as_const(session_.calls).ForEach(collective.id, visit);
  });
}

template <typename Visit>
void CatchUp::ForEachMerged(const Collective& origin, Visit visit) const {
  session_.directory.ForEach([&](const Collective& collective) {
    if (&collective.Origin() == &origin && collective.merged) visit(*collective.merged);
  });
}

bool CatchUp::Applies(const Collective& origin) const {
  return session_.options.catches_up() && OutlivesMembers(origin.spec);
}

Status CatchUp::Check(const Submission& submission) const {
  if (!session_.options.catches_up() || submission.sequence <= kCatchUpPositionMax) return {};
  return InvalidArgument(
      "jax_optireduce: with three or more processes the number of a call (step=) must be at most " +
      std::to_string(kCatchUpPositionMax.value()) + ", got " +
      Describe(submission.spec, submission.sequence));
}

Sequence CatchUp::UsualNumber(const Collective& origin, const Submission& submission) {
  const Sequence position = submission.sequence;
  if (!Applies(origin)) return position;
  return Sequence(position.value() + membership_.Skipped(origin));
}

void CatchUp::Call(const Submission& submission) {
  if (!submission.drain) clock_.Call(IdOf(submission.spec));
}

CatchUp::Turn CatchUp::Find(Instant now, Instant since, const Collective& origin,
                            const Submission& submission) {
  const Sequence usual = UsualNumber(origin, submission);
  if (!Applies(origin)) return {.number = usual};
  if (submission.drain) return FindDrain(origin, usual);
  const std::optional<Sequence> newest = origin.others_calls.newest();
  const bool behind = newest && usual <= *newest;
  if (behind) {
    const Progress progress = ProgressOf(origin, *newest);
    const bool complete = progress == Progress::kComplete;
    const bool over = progress == Progress::kOver || (complete && clock_.WaitsForNext());
    if (!over) return {.number = *newest, .complete = complete};
  }
  const Sequence next = behind ? Sequence(newest->value() + 1) : usual;
  if (OthersHaveEnded(origin, next, submission.sequence)) return {.number = next, .ended = true};
  if (!behind) return {.number = usual};
  return FindBehind(now, since, origin, usual, next);
}

CatchUp::Turn CatchUp::FindBehind(Instant now, Instant since, const Collective& origin,
                                  Sequence usual, Sequence next) const {
  if (front_.FindOthers(origin).empty()) return {.number = next};
  const OthersCalls& calls = origin.others_calls;
  const std::optional<Rank> going_on = front_.FindGoingOn(origin);
  const bool goes_on = going_on == session_.options.rank;
  // Ranks that are in step make the call at the same time, and the news is under way. A rank that
  // goes on comes here from another call.
  const bool patient = clock_.IsPatient(next) || (going_on && !goes_on);
  const Instant due = patient ? std::min(SaturatingAdd(calls.NextDue(), LongestWaitOfOthers()),
                                         SaturatingAdd(since, session_.options.peer_timeout))
                              : SaturatingAdd(since, calls.Interval() / kIntervalsPerBriefWait);
  const bool passing = clock_.state() == StepClock::State::kPassing;
  if (now >= due || passing || goes_on || OthersWait(now)) {
    return {.number = usual, .passes = true};
  }
  // Without a known interval it can be too short.
  const bool known = calls.Interval() > Duration::zero();
  return {.number = next, .waits_until = due, .patient = patient && known};
}

Duration CatchUp::LongestWaitOfOthers() const {
  Duration longest{};
  session_.directory.ForEach([&](const Collective& collective) {
    const bool waits = collective.deferred && EndsByDeadline(collective.spec);
    if (waits) longest = std::max(longest, collective.timing->call_deadline());
  });
  return longest;
}

void CatchUp::Wait(Instant now, Collective& collective, const Turn& turn) {
  clock_.Wait(turn.patient);
  if (turn.patient) collective.Origin().others_calls.RecordWait();
  const CallId skipped{.collective = collective.id, .sequence = Sequence(turn.number.value() - 1)};
  collective.presence->RecordSelf(/*takes_part=*/false);
  collective.presence->RecordWait(session_.options.rank, skipped);
  CallPolicy::RecordReturn(now, collective, collective.self, skipped.sequence);
  const std::uint8_t flags = turn.patient ? kFlagPatient : 0;
  TellOthers(collective, {.kind = DatagramKind::kReturned, .flags = flags, .call = skipped});
}

void CatchUp::Begin(const Turn& turn, bool waited, Collective& origin, Submission& submission) {
  if (turn.passes) {
    clock_.Pass();
  } else if (waited) {
    clock_.Join();
  }
  if (turn.passes && origin.presence != nullptr) origin.presence->EndWait(session_.options.rank);
  if (turn.complete) clock_.BeginComplete();
  if (turn.ended) ++origin.outlasting;
  if (submission.drain) {
    origin.drain_number.Begin(turn.number);
    if (origin.presence != nullptr) origin.presence->EndDrains();
  }
  if (!Applies(origin)) return;
  submission.skipped = membership_.Skip(origin, submission.sequence, turn.number);
  submission.sequence = turn.number;
  if (!turn.tells) return;
  TellOthers(origin, {.kind = DatagramKind::kDraining,
                      .flags = kFlagBegun,
                      .call = {.collective = origin.id, .sequence = turn.number}});
}

CatchUp::Turn CatchUp::FindGivenUp(const Collective& origin, const Submission& submission) {
  const Sequence usual = UsualNumber(origin, submission);
  // The others wait for this rank in the drain of the number that it has told.
  return {.number = submission.drain ? origin.drain_number.told().value_or(usual) : usual};
}

std::optional<CallId> CatchUp::FindDrainGivenUp(const Collective& origin,
                                                const Submission& submission) const {
  return Applies(origin) && submission.drain ? origin.drain_number.given_up() : std::nullopt;
}

CatchUp::Turn CatchUp::FindDrain(const Collective& origin, Sequence least) const {
  const DrainNumber& drain = origin.drain_number;
  if (drain.begun()) return {.number = *drain.begun(), .tells = true};
  // Once told it only rises to those of others: else it could be another after all have agreed.
  Sequence number = drain.told().value_or(std::max(least, FirstDrain(origin)));
  const std::vector<Rank> others = front_.FindOthers(origin);
  for (const Rank member : others) {
    number = std::max(number, drain.Least(member).value_or(number));
  }
  const bool agreed =
      std::ranges::all_of(others, [&](Rank member) { return drain.Least(member) == number; });
  return {.number = number, .waits_until = agreed ? Instant{} : kNever, .tells = true};
}

CatchUp::Progress CatchUp::ProgressOf(const Collective& origin, Sequence number) const {
  Progress progress = Progress::kUnderWay;
  bool open = false;
  ForEachOpen(origin, [&](CallId call, const OpenCall& found) {
    if (call.sequence != number) return;
    open = true;
    const ReduceScatterStage& stage = found.exchange.reduce_scatter();
    const bool complete = found.exchange.all_gather().complete();
    const Collective& collective = found.exchange.collective();
    // This rank's shard can be complete without its own contribution, while the others wait for
    // those to theirs.
    const bool ended = complete && stage.closed();
    if (stage.expired() || ended || !found.exchange.program().uncalled()) {
      progress = Progress::kOver;
    } else if (complete && collective.layout.SegmentsOf(collective.self) == 0) {
      progress = Progress::kComplete;
    } else {
      progress = Progress::kUnderWay;
    }
  });
  if (open) return progress;
  ForEachMerged(origin, [&](Sequence merged) {
    if (merged >= number) progress = Progress::kOver;
  });
  return progress;
}

Sequence CatchUp::FirstDrain(const Collective& origin) const {
  Sequence first = membership_.view().FirstOf(origin.bucket_id);
  ForEachMerged(origin, [&](Sequence merged) {
    if (merged != kFinalDrain) first = std::max(first, Sequence(merged.value() + 1));
  });
  return first;
}

bool CatchUp::OthersWait(Instant now) const {
  for (const auto& [call, open] : std::as_const(session_.calls)) {
    const Exchange& exchange = open.exchange;
    const Collective& collective = exchange.collective();
    const bool waits = !HasDeadlines(collective.spec) || exchange.policy().drains();
    if (!waits || !exchange.program().uncalled() || call.sequence == kFinalDrain) continue;
    const auto heard = [&](MemberIndex member) { return exchange.heard(member); };
    if (std::ranges::any_of(collective.others, heard)) return true;
  }
  const auto awaits = [&](const Peer::Waiting& report) {
    const Collective& collective = *session_.directory.Find(report.call.collective);
    const bool called = collective.submitted && report.call.sequence <= *collective.submitted;
    return !called && now - report.last <= kReportLifetime;
  };
  return std::ranges::any_of(session_.peers.others(), [&](const Peer& peer) {
    return std::ranges::any_of(peer.waiting, awaits);
  });
}

bool CatchUp::OthersHaveEnded(const Collective& origin, Sequence number, Sequence position) const {
  const bool may_outlast = origin.outlasting < number.value() - position.value();
  const bool left = std::ranges::any_of(front_.FindOthers(origin), [&](Rank member) {
    return session_.peers[member]->state() == PeerState::kLeft;
  });
  if (!front_.Drains(origin) && !(left && may_outlast)) return false;
  bool open = false;
  ForEachOpen(origin, [&](CallId call, const OpenCall&) {
    open = open || (call.sequence >= number && call.sequence != kFinalDrain);
  });
  return !open;
}

bool CatchUp::Tell(Collective& origin, Sequence least) {
  if (origin.drain_number.told() == least) return false;
  origin.drain_number.Tell(least);
  origin.presence->RecordDrain(session_.options.rank);
  TellOthers(origin, {.kind = DatagramKind::kDraining,
                      .call = {.collective = origin.id, .sequence = least}});
  return true;
}

void CatchUp::HandleReturn(Collective& collective, MemberIndex member, Sequence skipped,
                           bool patient) {
  std::vector<MemberIndex>& returned = collective.returned;
  if (patient) collective.Origin().others_calls.RecordWait();
  if (collective.submitted && *collective.submitted > skipped) {
    return TellBegun(collective, member, *collective.submitted);
  }
  const std::optional<Collective::Sign>& newest = collective.newest_call[member.index()];
  const bool waits = !newest || newest->sequence <= skipped;
  if (collective.presence != nullptr && waits) {
    collective.presence->RecordWait(collective.RankOf(member),
                                    {.collective = collective.id, .sequence = skipped});
  }
  if (std::ranges::find(returned, member) == returned.end()) returned.push_back(member);
}

void CatchUp::AnswerReturned(Collective& collective, Sequence number) {
  for (const MemberIndex member : collective.returned) {
    TellBegun(collective, member, number);
    collective.presence->RecordReturn(collective.RankOf(member), collective.id);
  }
  collective.returned.clear();
}

void CatchUp::TellBegun(const Collective& collective, MemberIndex member, Sequence number) {
  const Rank rank = collective.RankOf(member);
  if (session_.peers[rank]->gone()) return;
  session_.peers.Touch(rank).control.push_back(
      {.kind = DatagramKind::kAnnouncement,
       .call = {.collective = collective.id, .sequence = number},
       .segment = {}});
}

void CatchUp::TellOthers(const Collective& collective, const SentInfo& info) {
  for (const Rank member : front_.FindOthers(collective)) {
    if (session_.peers[member]->gone()) continue;
    session_.peers.Touch(member).control.push_back(info);
  }
}

}  // namespace optireduce
