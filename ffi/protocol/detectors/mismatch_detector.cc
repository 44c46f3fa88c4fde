#include "ffi/protocol/detectors/mismatch_detector.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace optireduce {
namespace {

// Chosen: a program has a few calls under way at once; more reports add nothing.
constexpr std::size_t kWaitingMax = 8;
// Chosen: errors are rare, and after a few of them a program has ended.
constexpr std::size_t kDisagreedMax = 64;
// Calls of one collective that this rank makes beyond those of a peer, from which on it does not
// come to the call in which that peer waits. Chosen: independent calls of a step start in another
// order on each rank, and the next step may begin before they end; no rank is two steps ahead.
constexpr std::uint32_t kBeyondCalls = 2;
// Such a call fails after so many times `mismatch_timeout`. Chosen: a minute by default, for a user
// to read the warning; far below the default of `call_timeout`.
constexpr int kLoneTimeouts = 6;

// The error of the calls that a peer has given up.
Status ErrorOf(const Header& header, const std::string& why, std::uint16_t world_size) {
  const int cause = header.flags >> kCauseShift & kCauseMask;
  const bool known = cause <= static_cast<int>(Cause::kCancelled);
  const Rank other = header.sender_info < world_size ? Rank(header.sender_info) : header.source;
  std::vector<Rank> ranks{other};
  if ((header.flags & kFlagSenderToo) != 0 && other != header.source) {
    ranks.push_back(header.source);
    std::ranges::sort(ranks);
  }
  return {StatusCode::kAborted,
          why,
          {.cause = known ? static_cast<Cause>(cause) : Cause::kOther, .ranks = std::move(ranks)}};
}

}  // namespace

// ---- Ranks in different calls.

void MismatchDetector::Report(Instant now, const Exchange& exchange) {
  if (now - exchange.program().submitted_at() < kReportInterval) return;
  for (const Rank member : exchange.collective().spec.members) {
    if (member == options_.rank) continue;
    // All of them: a peer that waits for results of this rank is to know that it waits as well.
    Peer& other = peers_.Touch(member);
    if (other.gone() || other.control.size() >= kWaitingMax) continue;
    other.control.push_back(
        {.kind = DatagramKind::kWaiting, .call = exchange.call(), .segment = {}});
  }
}

void MismatchDetector::HandleReport(Instant now, Rank rank, CallId call) {
  Peer& from = peers_.Touch(rank);
  std::erase_if(from.waiting,
                [&](const Peer::Waiting& report) { return now - report.last > kReportLifetime; });
  const Collective& collective = *directory_.Find(call.collective);
  const auto ours = collective.given_up.find(collective.self);
  if (ours != collective.given_up.end()) {
    // It has not heard of it: it was silent at that time.
    const GivenUpCalls::Interval* const calls = ours->second.Find(call.sequence);
    if (calls != nullptr) QueueGivenUp(from, call, *calls);
  }
  const auto known = std::ranges::find(from.waiting, call, &Peer::Waiting::call);
  if (known != from.waiting.end()) {
    known->last = now;
    CheckLone(now, from, *known);
  } else if (from.waiting.size() < kWaitingMax) {
    from.waiting.push_back({.call = call, .first = now, .last = now});
  }
}

// ---- Calls that this rank passes by.

std::optional<CallId> MismatchDetector::FindBeyond(Rank peer, std::optional<CallId> last) const {
  // The newest call of the peer, by the collective as programs make it.
  std::map<CollectiveId, Sequence> theirs;
  directory_.ForEach([&](const Collective& collective) {
    const auto member = collective.MemberOf(peer);
    if (!member || !collective.newest_call[member->index()]) return;
    const Sequence newest = collective.newest_call[member->index()]->sequence;
    Sequence& known = theirs.try_emplace(collective.Origin().id, newest).first->second;
    known = std::max(known, newest);
  });
  std::optional<CallId> beyond;
  directory_.ForEach([&](const Collective& collective) {
    if (!collective.accepted || !collective.MemberOf(peer)) return;
    const auto newest = theirs.find(collective.id);
    // This rank's position: where it skips calls, their numbers are higher, as those of the peer.
    if (newest != theirs.end() && *collective.accepted <= newest->second) return;
    if (last && last->collective == collective.id) {
      beyond = last;
    } else if (!beyond) {
      beyond = {.collective = collective.id, .sequence = *collective.accepted};
    }
  });
  return beyond;
}

void MismatchDetector::CheckLone(Instant now, Peer& from, Peer::Waiting& report) {
  Collective& theirs = *directory_.Find(report.call.collective);
  const bool called = theirs.accepted && report.call.sequence <= *theirs.accepted;
  // Drains of collectives that continue without silent ranks are agreed in another way.
  if (called || OutlivesMembers(theirs.spec)) return;
  const std::optional<CallId> beyond = FindBeyond(from.rank, report.beyond);
  if (beyond != report.beyond) {
    report.beyond = beyond;
    report.beyond_since = now;
  }
  if (!beyond) return;
  const Collective& ours = *directory_.Find(beyond->collective);
  if (ours.accepted->value() < beyond->sequence.value() + kBeyondCalls) return;
  const Duration waited = now - report.beyond_since;
  if (waited < options_.mismatch_timeout) return;
  const std::string call = Describe(theirs.spec, report.call.sequence);
  const std::string elsewhere = Describe(ours.spec, *ours.accepted);
  const Duration limit = options_.mismatch_timeout * kLoneTimeouts;
  if (!std::exchange(report.told, true) && lone_.size() < kWaitingMax) {
    lone_.push_back({.rank = from.rank,
                     .call = call,
                     .elsewhere = elsewhere,
                     .waited = now - report.first + kReportInterval,
                     .limit = limit});
  }
  if (waited < limit) return;
  const std::string self = "rank " + std::to_string(options_.rank.value());
  const Status why(
      StatusCode::kInvalidArgument,
      "jax_optireduce: the ranks disagree: rank " + std::to_string(from.rank.value()) +
          " waits in " + call + ", which " + self + " has not made; " + self + " has gone on to " +
          elsewhere,
      {.cause = Cause::kDisagreement,
       .ranks = {std::min(options_.rank, from.rank), std::max(options_.rank, from.rank)}});
  // The others learn of it from the peer, whose call ends.
  QueueGivenUp(
      from, report.call,
      theirs.given_up[theirs.self].Add(
          {.first = report.call.sequence, .last = report.call.sequence, .disagreed = true}, why));
}

std::optional<LoneCall> MismatchDetector::PollLone() {
  if (lone_.empty()) return std::nullopt;
  std::optional<LoneCall> next(std::move(lone_.front()));
  lone_.pop_front();
  return next;
}

Status MismatchDetector::Disagreement(const Exchange& exchange, Rank other,
                                      const CollectiveSpec& theirs, Sequence their_sequence) const {
  return {StatusCode::kInvalidArgument,
          "jax_optireduce: the ranks disagree: rank " + std::to_string(options_.rank.value()) +
              " is in " + Describe(exchange.collective().spec, exchange.call().sequence) +
              ", rank " + std::to_string(other.value()) + " is in " +
              Describe(theirs, their_sequence) + std::string(kAdvice),
          {.cause = Cause::kDisagreement,
           .ranks = {std::min(options_.rank, other), std::max(options_.rank, other)}}};
}

bool MismatchDetector::IsElsewhere(Instant now, const Exchange& exchange,
                                   const Peer::Waiting& report) const {
  if (now - report.last > kReportLifetime) return false;
  // The first report came when the peer had waited for one interval already.
  if (now - report.first + kReportInterval < options_.mismatch_timeout) return false;
  const Collective& theirs = *directory_.Find(report.call.collective);
  // Called here, unless this rank's program has jumped over it.
  const OpenCall* const open = calls_.Find(report.call);
  const bool called = theirs.submitted && report.call.sequence <= *theirs.submitted &&
                      (open == nullptr || open->exchange.program().submitted());
  if (called) return false;
  // On its way there: an earlier call of the same collective is under way. Unless it is this one,
  // which the peer, in a later one, never was in: else something of the peer would be here.
  const CollectiveSpec& spec = exchange.collective().spec;
  const bool needs_all = !HasDeadlines(spec) && HasReduceScatter(spec);
  bool on_its_way = false;
  calls_.ForEach(report.call.collective, [&](CallId call, const OpenCall& earlier) {
    if (call == exchange.call() && needs_all) return;
    if (earlier.exchange.program().running()) on_its_way = true;
  });
  return !on_its_way;
}

Status MismatchDetector::FindCrossed(Instant now, const Exchange& exchange) {
  if (now - exchange.program().submitted_at() < options_.mismatch_timeout) return {};
  // A rank that waits for one that does not answer, wherever that is, gets its own error, or goes
  // on without it.
  const Collective& ours = exchange.collective();
  if (HasSilentMember(now, ours) || (membership_.Survives(ours.spec) && membership_.agreeing()))
    return {};
  for (const MemberIndex member : ours.others) {
    // It may be past the call, with a result that is still to come here.
    const auto& newest = ours.newest_call[member.index()];
    const bool announced = newest && newest->sequence == exchange.call().sequence;
    if (announced || exchange.heard(member) || !exchange.WaitsFor(member)) continue;
    for (const Peer::Waiting& report : peers_[ours.RankOf(member)]->waiting) {
      if (!IsElsewhere(now, exchange, report)) continue;
      RecordDisagreements(ours);
      const Collective& theirs = *directory_.Find(report.call.collective);
      return Disagreement(exchange, ours.RankOf(member), theirs.spec, report.call.sequence);
    }
  }
  return {};
}

bool MismatchDetector::HasSilentMember(Instant now, const Collective& collective) const {
  return std::ranges::any_of(collective.others, [&](MemberIndex member) {
    return now - peers_[collective.RankOf(member)]->last_heard >= options_.peer_timeout / 2;
  });
}

void MismatchDetector::RecordDisagreements(const Collective& ours) {
  for (const MemberIndex member : ours.others) {
    for (const Peer::Waiting& report : peers_[ours.RankOf(member)]->waiting) {
      RecordDisagreement(report.call);
    }
  }
}

Status MismatchDetector::FindMismatched(const Exchange& exchange) {
  if (!exchange.program().running()) return {};
  const Sequence sequence = exchange.call().sequence;
  if (sequence == kFinalDrain) return {};
  const Collective& ours = exchange.collective();
  for (const Collective* theirs : directory_.Named(ours.spec.name)) {
    if (theirs == &ours || theirs->spec.members != ours.spec.members) continue;
    const CallId call{.collective = theirs->id, .sequence = sequence};
    const OpenCall* const open = calls_.Find(call);
    for (std::uint16_t m = 0; m < theirs->layout.members(); ++m) {
      const MemberIndex member(m);
      const auto& announced = theirs->announced_at[m];
      const bool there = (announced && announced->sequence == sequence) ||
                         (open != nullptr && open->exchange.heard(member));
      if (!there || member == ours.self) continue;
      RecordDisagreement(call);
      return Disagreement(exchange, theirs->RankOf(member), theirs->spec, sequence);
    }
  }
  return {};
}

std::vector<Verdict> MismatchDetector::FindMismatched(const std::string& name, Sequence sequence) {
  std::vector<Verdict> verdicts;
  for (const Collective* collective : directory_.Named(name)) {
    const CallId call{.collective = collective->id, .sequence = sequence};
    const OpenCall* const open = calls_.Find(call);
    if (open == nullptr) continue;
    Status why = FindMismatched(open->exchange);
    if (!why.ok()) verdicts.push_back({.call = call, .why = std::move(why)});
  }
  return verdicts;
}

std::vector<Verdict> MismatchDetector::FindConflicting(const Collective& collective) const {
  std::vector<Verdict> verdicts;
  calls_.ForEach(collective.id, [&](CallId call, const OpenCall& open) {
    if (open.exchange.program().running())
      verdicts.push_back({.call = call, .why = collective.conflict});
  });
  return verdicts;
}

Status MismatchDetector::FindCrossedAfterEnd(Instant now, const Exchange& exchange) const {
  if (exchange.policy().Waits()) return {};
  const Collective& collective = exchange.collective();
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank) continue;
    const MemberIndex index = *collective.MemberOf(member);
    // Nothing of it, though it lives, and it has never called this collective: what does it call?
    if (exchange.heard(index) || collective.announced_at[index.index()]) continue;
    const Duration silence = now - peers_[member]->last_heard;
    if (silence > collective.spec.reduce_scatter_deadline) continue;
    const auto crossed = directory_.FindAnnouncedOnly(member, now - options_.mismatch_timeout);
    if (!crossed) continue;
    return Disagreement(exchange, member, crossed->spec,
                        crossed->announced_at[crossed->MemberOf(member)->index()]->sequence);
  }
  return {};
}

// ---- Calls that are given up.

Status MismatchDetector::FailureOf(Rank rank, bool disagreed, const Status& theirs,
                                   const std::string& ours) const {
  const std::string& why = theirs.message();
  // It is about this rank itself, which needs no other introduction.
  if (disagreed &&
      std::ranges::find(theirs.blame().ranks, options_.rank) != theirs.blame().ranks.end()) {
    return {StatusCode::kInvalidArgument, why + std::string(kAdvice), theirs.blame()};
  }
  constexpr std::string_view kStopped = " has stopped with this error: ";
  std::string cause = "rank " + std::to_string(rank.value());
  // Where it began: a chain of errors would hide that, and is cut where a datagram ends. The text
  // is a peer's, and may be anything.
  const std::size_t nested = why.rfind(kStopped);
  const std::size_t origin = nested == std::string::npos ? nested : why.rfind("rank ", nested);
  if (origin == std::string::npos) {
    cause += std::string(kStopped) + why;
  } else {
    cause += " has stopped because " + why.substr(origin);
  }
  if (disagreed) cause += kAdvice;
  return {disagreed ? StatusCode::kInvalidArgument : StatusCode::kAborted,
          "jax_optireduce: " + ours + " cannot be completed: " + cause, theirs.blame()};
}

void MismatchDetector::ReportGivenUp(Collective& collective, Sequence sequence, const Status& why,
                                     bool disagreed) {
  const std::string& text = why.message();
  const bool advises = text.ends_with(kAdvice);
  const GivenUpCalls::Interval calls = collective.given_up[collective.self].Add(
      {.first = sequence, .last = sequence, .disagreed = disagreed},
      Status(why.code(), text.substr(0, text.size() - (advises ? kAdvice.size() : 0)),
             why.blame()));
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || peers_.Touch(member).gone()) continue;
    QueueGivenUp(peers_.Touch(member), {.collective = collective.id, .sequence = sequence}, calls);
  }
}

void MismatchDetector::QueueGivenUp(Peer& to, CallId call, const GivenUpCalls::Interval& calls) {
  const std::uint8_t flags = calls.disagreed ? kFlagDisagreed : 0;
  // One datagram covers the interval.
  const bool queued = to.control.AnyOf([&](const SentInfo& info) {
    return info.kind == DatagramKind::kGaveUp && info.call.collective == call.collective &&
           info.flags == flags && calls.Contains(info.call.sequence);
  });
  if (queued) return;
  to.control.push_back(
      {.kind = DatagramKind::kGaveUp, .flags = flags, .call = call, .segment = {}});
}

std::vector<Verdict> MismatchDetector::HandleGivenUp(Instant now, const Header& header,
                                                     Collective& collective,
                                                     const std::string& why) {
  const Rank from = header.source;
  const GivenUpCalls::Interval calls{
      .first = Sequence(header.call.sequence.value() - header.segment.value()),
      .last = header.call.sequence,
      .disagreed = (header.flags & kFlagDisagreed) != 0};
  const bool known = DisagreementKnown(header.call);
  const Status error = ErrorOf(header, why, options_.world_size);
  std::vector<Verdict> verdicts;
  for (const auto& [ours, open] : calls_) {
    const Exchange& exchange = open.exchange;
    const CollectiveSpec& spec = exchange.collective().spec;
    const auto member = exchange.collective().MemberOf(from);
    if (!member || !exchange.waiting()) continue;
    // A rank that disagrees was there instead of in the calls that wait for it here; unless that
    // disagreement has already ended a call here, which these came after.
    const bool instead = calls.disagreed && !exchange.heard(*member) && !known;
    const bool same = ours.collective == collective.id && calls.Contains(ours.sequence);
    if (!same && !instead) continue;
    if (MayGoOnWithout(spec, from, calls.disagreed)) continue;
    verdicts.push_back(
        {.call = ours,
         .why = FailureOf(from, calls.disagreed, error, Describe(spec, ours.sequence))});
  }
  const MemberIndex member = *collective.MemberOf(from);
  collective.given_up[member].Add(calls, error);
  collective.RecordCalled(now, member, calls.last);
  return verdicts;
}

bool MismatchDetector::DisagreementKnown(CallId call) const {
  if (std::ranges::find(disagreed_, call) != disagreed_.end()) return true;
  const Collective& collective = *directory_.Find(call.collective);
  const auto ours = collective.given_up.find(collective.self);
  return ours != collective.given_up.end() && ours->second.Find(call.sequence) != nullptr;
}

void MismatchDetector::RecordDisagreement(CallId theirs) {
  disagreed_.push_back(theirs);
  if (disagreed_.size() > kDisagreedMax) disagreed_.pop_front();
}

bool MismatchDetector::MayGoOnWithout(const CollectiveSpec& spec, Rank from, bool disagreed) const {
  if (!membership_.Survives(spec) || disagreed) return false;
  return peers_[from]->removed() || membership_.agreeing();
}

Status MismatchDetector::WhyGivenUp(const Collective& collective, Sequence sequence) const {
  for (const auto& [member, calls] : collective.given_up) {
    if (member == collective.self) continue;
    const GivenUpCalls::Interval* const interval = calls.Find(sequence);
    const Rank rank = collective.RankOf(member);
    if (interval == nullptr || MayGoOnWithout(collective.spec, rank, interval->disagreed)) continue;
    return FailureOf(rank, interval->disagreed, calls.why(), Describe(collective.spec, sequence));
  }
  return {};
}

}  // namespace optireduce
