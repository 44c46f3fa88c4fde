// Calls that end with an error although they should wait, and calls that are never made: peers that
// wait in such a call, or come to it later, must not wait for this rank. And the bound of all
// waiting, where every peer answers and some program does not go on.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/protocol/endpoint_impl.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
// ---- What this rank gives up.

void Endpoint::Impl::GiveUp(Instant now, Submission call, const Status& why) {
  OR_CHECK(!why.ok());
  if (!Validate(call.spec).ok()) return;
  Result<Collective*> learnt = Learn(now, call.spec);
  if (!learnt.ok()) return;
  Collective& collective = *learnt.value();
  const bool known = collective.accepted && call.sequence <= *collective.accepted;
  if (known || call.sequence == kFinalDrain) return;
  collective.accepted = call.sequence;
  if (!Survives(collective.spec)) return GiveUpUncalled(now, collective, call, why);
  call.leaves.clear();
  held_.push_back({.submission = std::move(call), .since = now, .given_up = why});
  GoOn(now);
}

void Endpoint::Impl::GiveUpUncalled(Instant now, Collective& collective, const Submission& call,
                                    const Status& why) {
  const Sequence sequence = call.sequence;
  const CollectiveSpec& spec = collective.spec;
  if (!collective.submitted) transmitter_.Announce(collective, sequence, 0);
  collective.submitted = sequence;
  if (collective.deferred) {
    // Results of it may be under way.
    for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
      collective.deferred->NoteResults(MemberIndex(m), sequence, /*complete=*/false);
    }
  }
  const bool waited_for = spec.reduce_scatter == LatePolicy::kWait ||
                          spec.all_gather == LatePolicy::kWait || (call.drain && Defers(spec));
  if (!waited_for) {
    // Peers need no error: the call ends by its deadline there.
    Overtake(now, collective, Sequence(sequence.value() + 1), /*drain=*/false);
    return;
  }
  // A peer may have opened it.
  auto* const open = calls_.Find({.collective = collective.id, .sequence = sequence});
  if (open != nullptr) {
    open->exchange.Remember();
    calls_.Erase(open->exchange.call());
  }
  // Whatever the reason: this rank is in no other call instead.
  mismatch_.TellGivenUp(collective, sequence, why.message(), kFlagGaveUp);
}

bool Endpoint::Impl::FailIf(Instant now, CallId call, Status why) {
  if (why.ok()) return false;
  Fail(now, call, std::move(why));
  return true;
}

void Endpoint::Impl::Apply(Instant now, std::vector<Verdict> verdicts) {
  for (Verdict& verdict : verdicts) Fail(now, verdict.call, std::move(verdict.why));
}

// ---- The bound of all waiting.

Instant Endpoint::Impl::TooLongAfter(Instant called_at) const {
  if (options_.call_timeout == Duration::zero()) return kNever;
  return SaturatingAdd(called_at, options_.call_timeout);
}

std::string Endpoint::Impl::LastSignOf(Instant now, Rank rank) const {
  const Collective* newest = nullptr;
  Collective::Sign sign{};
  directory_.ForEach([&](const Collective& collective) {
    const auto member = collective.MemberOf(rank);
    if (!member || !collective.newest_call[member->index()]) return;
    const Collective::Sign& other = *collective.newest_call[member->index()];
    if (newest != nullptr && other.at <= sign.at) return;
    newest = &collective;
    sign = other;
  });
  const Instant heard = peer(rank).last_heard;
  std::string text = "rank " + std::to_string(rank.value()) + " (";
  text += heard == Instant{} ? "never heard" : "heard " + RoundedSeconds(now - heard) + " ago";
  if (newest == nullptr) return text + ", it has called nothing)";
  return text + ", it last called " + Describe(newest->spec, sign.sequence) + ", " +
         RoundedSeconds(now - sign.at) + " ago)";
}

bool Endpoint::Impl::FailIfTooLong(Instant now, const Exchange& exchange) {
  if (!exchange.waiting() || now < TooLongAfter(exchange.called_at())) return false;
  // A rank whose result is missing may be waiting itself, for one that has not called.
  const Collective& collective = exchange.collective();
  std::vector<Rank> ranks;
  for (const Rank rank : collective.spec.members) {
    const bool waits = rank == options_.rank || exchange.heard(*collective.MemberOf(rank));
    if (!waits && !peer(rank).gone()) ranks.push_back(rank);
  }
  if (ranks.empty()) ranks = WaitingFor(exchange).ranks;
  std::string whom;
  for (const Rank rank : ranks) whom += (whom.empty() ? "" : "; ") + LastSignOf(now, rank);
  const CallId call = exchange.call();
  Fail(now, call,
       {StatusCode::kDeadlineExceeded,
        "jax_optireduce: " + Describe(exchange.collective().spec, call.sequence) + " has waited " +
            RoundedSeconds(now - exchange.called_at()) + " (call_timeout_s) for " + whom +
            ". A process that is heard is alive: look at what its program does (py-spy dump), or "
            "give a longer call_timeout_s"});
  return true;
}

void Endpoint::Impl::FailHeldTooLong(Instant now) {
  for (Held& held : held_) {
    if (held.given_up || now < TooLongAfter(held.since)) continue;
    const Submission& call = held.submission;
    FailHeld(now, held,
             {StatusCode::kDeadlineExceeded,
              "jax_optireduce: " + Describe(call.spec, call.sequence) + " has waited " +
                  RoundedSeconds(now - held.since) +
                  " (call_timeout_s) for the ranks to agree on which of them take part in it"});
  }
}

}  // namespace optireduce
