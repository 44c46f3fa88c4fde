#include "ffi/protocol/lifecycle/call_lifecycle.h"

#include <algorithm>
#include <utility>

namespace optireduce {

CallLifecycle::CallLifecycle(SessionState& session, const LifecycleParts& parts)
    : options_(session.options),
      counters_(session.counters),
      peers_(session.peers),
      directory_(session.directory),
      calls_(session.calls),
      pool_(session.pool),
      membership_(parts.membership),
      admission_(parts.admission),
      lag_(parts.lag),
      transmitter_(parts.transmitter),
      mismatch_(parts.mismatch),
      waits_(parts.waits) {}

void CallLifecycle::Apply(Instant now, std::vector<Verdict> verdicts) {
  for (Verdict& verdict : verdicts) {
    OpenCall* const open = calls_.Find(verdict.call);
    if (open == nullptr) continue;
    if (verdict.discard) {
      calls_.Erase(verdict.call);
    } else if (!verdict.why.ok()) {
      Fail(now, *open, std::move(verdict.why));
    } else {
      FinishIfComplete(now, *open);
      EraseIfRemovable(verdict.call);
    }
  }
}

void CallLifecycle::ExpireDue(Instant now) {
  std::vector<CallId> due;
  for (const auto& [call, open] : calls_) {
    if (now >= open.exchange.deadline()) due.push_back(call);
  }
  for (const CallId call : due) Expire(now, call);
}

Instant CallLifecycle::timeout() const {
  Instant at = kNever;
  for (const auto& [call, open] : calls_) at = std::min(at, open.exchange.deadline());
  return at;
}

void CallLifecycle::Expire(Instant now, CallId call) {
  OpenCall* const open = calls_.Find(call);
  if (open == nullptr) return;
  const ExpiryOutcome outcome = open->exchange.Expire(now);
  counters_.stages_expired += static_cast<std::uint64_t>(outcome.stages_expired);
  if (outcome.stages_expired > 0 || outcome.sums_added) transmitter_.QueueAll(*open);
  if (outcome.merged) RecordMerged(call);
  Apply(now, {{.call = call}});
}

void CallLifecycle::SpareAbsent(Instant now) {
  std::vector<Verdict> touched;
  for (auto& [call, open] : calls_) {
    Exchange& exchange = open.exchange;
    if (!OutlivesMembers(exchange.collective().spec) || !exchange.SpareAbsent(now)) continue;
    transmitter_.QueueAll(open);
    touched.push_back({.call = call});
  }
  Apply(now, std::move(touched));
}

void CallLifecycle::FinishComplete(Instant now) {
  std::vector<Verdict> complete;
  for (const auto& [call, open] : calls_) {
    if (open.exchange.complete()) complete.push_back({.call = call});
  }
  Apply(now, std::move(complete));
}

void CallLifecycle::FinishIfComplete(Instant now, OpenCall& open) {
  Exchange& exchange = open.exchange;
  Collective& collective = exchange.collective();
  if (!exchange.complete()) {
    if (exchange.WaitsForLag()) lag_.Add(exchange.call());
    return;
  }
  if (exchange.call().sequence == kFinalDrain) {
    exchange.Finish(now, {});
    EndFinalDrain(open);
    transmitter_.QueueAll(open);
  } else {
    Status status = mismatch_.FindCrossedAfterEnd(now, exchange);
    ++(status.ok() ? counters_.calls_completed : counters_.calls_failed);
    events_.push_back(exchange.Finish(now, std::move(status)));
    if (NeedsNoMember(collective.spec) && !events_.back().stats.passed) {
      collective.attendance.EndCall(
          [&exchange](MemberIndex member) { return exchange.heard(member); });
    }
    // Data that peers lack is sent although the call is over.
    if (collective.deferred) transmitter_.QueueAll(open);
    if (exchange.policy().LosesLate()) transmitter_.AdaptIncast();
  }
  EraseIfRemovable(exchange.call());
}

void CallLifecycle::EndFinalDrain(OpenCall& open) {
  Collective& collective = open.exchange.collective();
  for (std::uint32_t s = 0; s < collective.layout.segments(); ++s) {
    const ByteRange range = collective.layout.Segment(SegmentIndex(s));
    collective.deferred->late_results().Add(SegmentIndex(s),
                                            {open.final_drain.data() + range.offset, range.bytes});
  }
  open.final_drain = Buffer();
  collective.final_drain = Collective::FinalDrain::kDone;
}

void CallLifecycle::Fail(Instant now, OpenCall& open, Status why) {
  Exchange& exchange = open.exchange;
  Collective& collective = exchange.collective();
  const CallId call = exchange.call();
  // Invalid arguments are the errors of ranks that disagree.
  const bool disagreed = why.code() == StatusCode::kInvalidArgument;
  const auto report = [&] {
    mismatch_.ReportGivenUp(collective, call.sequence, ForPeers(why), disagreed);
  };
  if (exchange.program().finished()) {
    // Over here, but not at every peer.
    report();
    return EraseIfRemovable(call);
  }
  ++counters_.calls_failed;
  admission_.RecordChange();
  // Peers that wait in the same call, now or later, must not wait for this rank. Where they
  // continue without it, the notice that it leaves is enough.
  const bool missed = !(leaving_ && membership_.Survives(collective.spec));
  if (exchange.waiting() && missed) report();
  events_.push_back(exchange.Finish(now, std::move(why)));
  // Peers that wait for its sums fail with it. Others have them by their deadline.
  if (!collective.deferred || exchange.policy().Waits()) return Erase(open);
  transmitter_.QueueAll(open);
  EraseIfRemovable(call);
}

Status CallLifecycle::ForPeers(const Status& why) const {
  // Whatever ends the program here: the peers lose this rank.
  if (leaving_) return {why.code(), why.message(), {.cause = Cause::kPeerLost}};
  return why;
}

void CallLifecycle::EraseIfRemovable(CallId call) {
  OpenCall* const open = calls_.Find(call);
  if (open == nullptr || !open->exchange.removable()) return;
  admission_.RecordChange();
  Erase(*open);
}

void CallLifecycle::Erase(OpenCall& open) {
  open.exchange.Remember();
  calls_.Erase(open.exchange.call());
}

bool CallLifecycle::FailAll(Instant now, const Status& why, bool only_outliving) {
  std::vector<Verdict> failing;
  for (const auto& [call, open] : calls_) {
    const Exchange& exchange = open.exchange;
    const bool concerned = !only_outliving || OutlivesMembers(exchange.collective().spec);
    if (concerned && call.sequence != kFinalDrain && exchange.program().running()) {
      failing.push_back({.call = call, .why = why});
    }
  }
  const bool any = !failing.empty();
  Apply(now, std::move(failing));
  return any;
}

void CallLifecycle::Report(CallDone done) {
  ++(done.status.ok() ? counters_.calls_completed : counters_.calls_failed);
  events_.push_back(std::move(done));
}

std::optional<CallDone> CallLifecycle::PollEvent() {
  if (events_.empty()) return std::nullopt;
  CallDone done = std::move(events_.front());
  events_.pop_front();
  return done;
}

}  // namespace optireduce
