// Starting a call: the program has made it, and nothing keeps it from beginning; or a peer's
// datagram has come before the program did.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/protocol/endpoint_impl.h"
#include "ffi/schedule/tar.h"

namespace optireduce {

Status Endpoint::Impl::RefuseUnreachable(const Collective& collective,
                                         const Submission& submission) const {
  const CollectiveSpec& spec = collective.spec;
  if (spec.reduce_scatter == LatePolicy::kDrop && spec.all_gather == LatePolicy::kDrop) return {};
  for (const Rank member : spec.members) {
    if (member == options_.rank) continue;
    const Peer& other = peer(member);
    if (!other.unreachable()) continue;
    // One that has left in good order has made this call, and everything of it is here.
    if (Defers(spec) && other.left && HasCalled(collective, submission, member)) continue;
    // What has made it leave, perhaps.
    if (Status why = mismatch_.WhyGivenUp(collective, submission.sequence); !why.ok()) return why;
    return {StatusCode::kUnavailable, "jax_optireduce: '" + spec.name + "' needs rank " +
                                          std::to_string(member.value()) + ", but " +
                                          other.why_gone()};
  }
  return {};
}

void Endpoint::Impl::Begin(Instant now, Collective& collective, Submission submission) {
  refusals_stale_ = true;
  const bool first = !collective.submitted;
  const std::uint32_t sequence = submission.sequence.value();
  const std::uint32_t next = first ? 0 : collective.submitted->value() + 1;
  if (collective.deferred && sequence > next) {
    // Results of calls between may be under way: the program has jumped over them (step=).
    for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
      collective.deferred->NoteResults(MemberIndex(m), Sequence(sequence - 1), /*complete=*/false);
    }
  }
  collective.submitted = submission.sequence;
  const BucketView bucket(submission.leaves, SizeOf(collective.spec.element_type));
  AdoptUnsent(collective, bucket);
  if (collective.layout.members() == 1 || collective.spec.elements == 0) {
    collective.MoveLateResults(bucket);
    ++counters_.calls_completed;
    const CallStats stats{.elapsed = submission.held, .slowest = options_.rank};
    events_.push_back({.token = submission.token, .status = {}, .stats = stats});
    return;
  }
  if (first) transmitter_.Announce(collective, submission.sequence, 0);
  SubmitTo(now, collective, std::move(submission));
}

bool Endpoint::Impl::Overtake(Instant now, const Collective& collective, Sequence next,
                              bool drain) {
  bool in_order = true;
  std::vector<CallId> overtaken;
  std::vector<CallId> skipped;
  calls_.ForEach(collective.id, [&](CallId other, OpenCall& active) {
    if (other.sequence >= next) return;
    Exchange& exchange = active.exchange;
    in_order = in_order && exchange.over();
    if (exchange.Overtake(now)) overtaken.push_back(other);
    exchange.Compact();
    if (exchange.submitted() || exchange.over()) return;
    exchange.Skip();
    skipped.push_back(other);
  });
  for (const CallId other : overtaken) {
    transmitter_.QueueAll(calls_.At(other));
    EraseIfRemovable(other);
  }
  for (const CallId other : skipped) {
    auto* const open = calls_.Find(other);
    if (drain && IsBounded(collective.spec) && !open->exchange.drains()) {
      // Its sums are part of what the drain brings: they go before it.
      open->exchange.Close(now);
      NoteFolded(other);
      continue;
    }
    if (collective.spec.all_gather == LatePolicy::kDrop) calls_.Erase(open->exchange.call());
    if (collective.deferred) Expire(now, other);
  }
  return in_order;
}

void Endpoint::Impl::ReleaseGone(Instant now, const Collective& collective, Exchange& exchange) {
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || !peer(member).gone()) continue;
    const MemberIndex gone = *collective.MemberOf(member);
    const bool excluded =
        exchange.call().sequence == kFinalDrain || (exchange.drains() && peer(member).removed);
    excluded ? exchange.Exclude(now, gone) : exchange.sender().Release(gone);
  }
}

void Endpoint::Impl::SubmitTo(Instant now, Collective& collective, Submission submission) {
  const CallId call{.collective = collective.id, .sequence = submission.sequence};
  const bool in_order = Overtake(now, collective, call.sequence, submission.drain);
  auto* const open = calls_.Find(call);
  const bool folded = collective.folded && call.sequence <= *collective.folded;
  const bool over =
      open != nullptr ? open->exchange.folded() : folded || OthersDrain(collective, call.sequence);
  if (over) return SubmitLate(submission, collective);
  OpenCall& active = open != nullptr ? *open
                                     : Open(now, collective, call.sequence,
                                            Defers(collective.spec) && submission.drain);
  if (submission.drain && collective.deferred) active.exchange.Drain();
  if (collective.deferred) collective.deferred->ResumeCaughtUp(call.sequence);
  active.exchange.Submit(now, std::move(submission), in_order);
  if (collective.deferred) ReleaseGone(now, collective, active.exchange);
  transmitter_.QueueAll(active);
  transmitter_.NoteSubmitted();
  if (active.exchange.waiting()) {
    if (next_tick_ == kNever) next_tick_ = now;
    next_tick_ = std::min(next_tick_, TooLongAfter(active.exchange.called_at()));
  }
  if (FailIf(now, call, mismatch_.FindMismatched(active.exchange))) return;
  if (active.exchange.waiting() &&
      FailIf(now, call, mismatch_.WhyGivenUp(collective, call.sequence))) {
    return;
  }
  if (PassIfOthersHave(now, collective, active)) TellPosition(collective, call);
  FinishIfComplete(now, active);
}

OpenCall& Endpoint::Impl::Open(Instant now, Collective& collective, Sequence sequence, bool drain) {
  const std::uint16_t members = collective.layout.members();
  std::vector<MemberIndex>& order = send_orders_[{members, collective.self}];
  if (order.empty()) order = TarSendOrder(members, collective.self);
  const CollectiveSpec& spec = collective.spec;
  if (spec.reduce_scatter != LatePolicy::kWait && !collective.timing) {
    collective.timing = std::make_unique<CallTiming>(spec, collective.self, options_.late_budget,
                                                     options_.suspend_on_lag);
  }
  if (Defers(spec) && !collective.deferred) {
    collective.deferred = std::make_unique<DeferredData>(
        collective.layout, collective.self, collective.spec.element_type, options_.max_lag,
        options_.suspend_on_lag, pool_);
  }
  const ExchangeOptions options{
      .send_order = order, .lag_timeout = options_.peer_timeout, .drain = drain};
  OpenCall& opened = calls_.Add(collective, sequence, now, pool_, options);
  for (const Rank member : spec.members) {
    if (member == options_.rank || !Defers(spec) || !peer(member).gone()) continue;
    opened.exchange.sender().ReleaseResults(*collective.MemberOf(member));
  }
  return opened;
}

}  // namespace optireduce
