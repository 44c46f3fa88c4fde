#include "ffi/protocol/lifecycle/call_gate.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ffi/protocol/session/error_text.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// The highest number of a call, which is in the newest view.
constexpr Sequence kLastCall(kFinalDrain.value() - 1);

}  // namespace

void CallGate::Add(Instant now, Submission submission, std::optional<Status> given_up) {
  catch_up_.Call(submission);
  pending_.push_back(
      {.submission = std::move(submission), .since = now, .given_up = std::move(given_up)});
}

bool CallGate::Start(Instant now) {
  bool suspected = false;
  // A final drain that is over may let a drain begin; a call that begins may want a final drain.
  for (bool again = true; again;) {
    const Pass pass = StartPending(now);
    suspected = suspected || pass.suspected;
    if (pass.frozen) break;
    const auto begins = [&](Collective* old) { return BeginFinalDrain(now, *old); };
    again = std::erase_if(awaiting_final_drain_, begins) > 0 || pass.started;
  }
  return suspected;
}

CallGate::Pass CallGate::StartPending(Instant now) {
  Pass pass;
  std::vector<CollectiveId> waiting;
  for (std::size_t i = 0; i < pending_.size();) {
    const Submission& next = pending_[i].submission;
    Collective& origin = *session_.directory.Find(IdOf(next.spec));
    // Calls of the same collective stay behind one that waits.
    if (std::ranges::find(waiting, origin.id) != waiting.end()) {
      ++i;
      continue;
    }
    // The others can have made calls in the present view before the first one of this rank.
    if (!origin.submitted) (void)CollectiveInView(origin, catch_up_.UsualNumber(origin, next));
    if (EndGivenUpDrain(now, pending_[i], origin)) {
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      pass.started = true;
      continue;
    }
    const CatchUp::Turn turn = pending_[i].given_up
                                   ? catch_up_.FindGivenUp(origin, next)
                                   : catch_up_.Find(now, pending_[i].since, origin, next);
    // A call that is over has no members of its own.
    Result<Collective*> in_view = CollectiveInView(origin, turn.over() ? kLastCall : turn.number);
    if (in_view.ok() && MustWait(now, pending_[i], turn, origin, *in_view.value(), pass)) {
      waiting.push_back(origin.id);
      ++i;
      continue;
    }
    PendingCall pending = std::move(pending_[i]);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    pass.started = true;
    if (in_view.ok()) {
      Begin(now, std::move(pending), turn, origin, *in_view.value());
    } else if (!pending.given_up) {
      Fail(now, pending, in_view.status());
    }
  }
  return pass;
}

bool CallGate::EndGivenUpDrain(Instant now, PendingCall& pending, Collective& origin) {
  const auto call = catch_up_.FindDrainGivenUp(origin, pending.submission);
  if (!call || pending.given_up) return false;
  Status why = lifecycle_.WhyGivenUp(*call);
  if (why.ok()) return false;
  const CatchUp::Turn turn = catch_up_.FindGivenUp(origin, pending.submission);
  catch_up_.Begin(turn, /*waited=*/false, origin, pending.submission);
  origin.submitted = turn.number;
  Fail(now, pending, std::move(why));
  return true;
}

void CallGate::Begin(Instant now, PendingCall pending, const CatchUp::Turn& turn,
                     Collective& origin, Collective& in_view) {
  Submission& submission = pending.submission;
  catch_up_.Begin(turn, pending.number.has_value() && !submission.drain, origin, submission);
  submission.pending_for = now - pending.since;
  if (turn.over()) return lifecycle_.Pass(submission, origin, in_view);
  catch_up_.AnswerReturned(in_view, turn.number);
  if (pending.given_up) {
    lifecycle_.GiveUpUncalled(now, in_view, pending.submission, *pending.given_up);
  } else {
    lifecycle_.Begin(now, in_view, std::move(submission));
  }
  origin.submitted = turn.number;
}

Result<Collective*> CallGate::CollectiveInView(Collective& origin, Sequence sequence) {
  Collective* in_view = &origin;
  Sequence first(0);
  for (const View& view : membership_.views()) {
    const Sequence next_first = view.FirstOf(origin.bucket_id);
    if (sequence < next_first) break;
    CollectiveSpec spec = origin.spec;
    std::erase_if(spec.members, [&](Rank member) { return !view.Has(member); });
    if (spec.members == in_view->spec.members) continue;
    Result<Collective*> found = session_.directory.FindOrAdd(spec);
    if (!found.ok()) return found.status();
    Collective& next = *found.value();
    if (next.predecessor == nullptr) {
      in_view->ContinueAs(next);
      // All members that are left know from the agreement whether there was a call.
      if (next_first > first) {
        in_view->final_drain = Collective::FinalDrain::kWanted;
        awaiting_final_drain_.push_back(in_view);
      }
    }
    in_view = &next;
    first = next_first;
  }
  return in_view;
}

bool CallGate::MustWait(Instant now, PendingCall& pending, const CatchUp::Turn& turn,
                        Collective& origin, Collective& in_view, Pass& pass) {
  pending.waits_until = kNever;
  pending.waits_for = nullptr;
  if (turn.over()) {
    // It takes late results, so that the members must know of it.
    pass.frozen = membership_.frozen() || !membership_.TryStart(origin, in_view, turn.number);
    return pass.frozen;
  }
  const bool drain = pending.submission.drain;
  // Before it waits: the number may put the drain of others into the present view.
  if (turn.tells && catch_up_.Tell(origin, turn.number)) lifecycle_.SpareAbsent(now);
  if (!pending.given_up && AwaitsAgreement(now, in_view, turn.number, drain, pass)) {
    return true;
  }
  if (turn.waits_until > now) {
    pending.waits_until = turn.waits_until;
    if (drain) pending.waits_for = &in_view;
    if (pending.number != turn.number) lifecycle_.SkipTo(now, in_view, turn.number, drain);
    if (pending.number != turn.number && !drain) {
      catch_up_.Wait(now, in_view, turn);
      lifecycle_.SpareAbsent(now);
    }
    pending.number = turn.number;
    return true;
  }
  if (membership_.TryStart(origin, in_view, turn.number)) return false;
  pass.frozen = true;
  return true;
}

bool CallGate::AwaitsAgreement(Instant now, const Collective& in_view, Sequence number, bool drain,
                               Pass& pass) {
  if (drain) {
    for (const Collective* c = in_view.predecessor; c != nullptr; c = c->predecessor) {
      using enum Collective::FinalDrain;
      if (c->final_drain == kWanted || c->final_drain == kUnderWay) return true;
    }
  }
  bool left = false;
  for (const Rank member : in_view.spec.members) {
    if (member == session_.options.rank || session_.peers[member]->state() != PeerState::kLeft ||
        session_.calls.HasCalled(in_view, number, drain, member)) {
      continue;
    }
    left = pass.suspected = true;
    membership_.Suspect(now, member);
  }
  return left;
}

bool CallGate::EndUncalled(Instant now, const Collective& collective) {
  bool under_way = false;
  std::vector<CallId> uncalled;
  session_.calls.ForEach(collective.id, [&](CallId call, const OpenCall& open) {
    const Exchange& exchange = open.exchange;
    if (call.sequence == kFinalDrain) return;
    under_way = under_way || exchange.program().running();
    if (exchange.program().uncalled()) uncalled.push_back(call);
  });
  if (under_way) return false;
  for (const CallId call : uncalled) {
    Exchange& exchange = session_.calls.At(call).exchange;
    if (!exchange.policy().drains()) {
      exchange.Merge(now);
      lifecycle_.RecordMerged(call);
    } else {
      lifecycle_.Apply(now, {{.call = call, .discard = true}});
    }
  }
  return true;
}

bool CallGate::BeginFinalDrain(Instant now, Collective& collective) {
  if (!EndUncalled(now, collective)) return false;
  const CallId call{.collective = collective.id, .sequence = kFinalDrain};
  OpenCall* open = session_.calls.Find(call);
  if (open == nullptr) open = &session_.calls.Open(now, collective, kFinalDrain, /*drain=*/true);
  Buffer& bucket = open->final_drain;
  bucket = session_.pool.Take(collective.layout.bytes());
  if (bucket.size() > 0) std::memset(bucket.data(), 0, bucket.size());
  collective.final_drain = Collective::FinalDrain::kUnderWay;
  lifecycle_.SubmitTo(now, collective,
                      {.spec = collective.spec,
                       .sequence = kFinalDrain,
                       .leaves = {{.data = bucket.data(), .elements = collective.spec.elements}},
                       .drain = true});
  // Later data of it is a repetition.
  collective.merged = kFinalDrain;
  if (!pending_.empty()) waits_.LookAt(now);
  return true;
}

void CallGate::HandleView(Instant now) {
  session_.directory.ForEach([&](Collective& collective) {
    const bool whole = std::ranges::all_of(
        collective.spec.members, [&](Rank member) { return membership_.view().Has(member); });
    const bool called = membership_.view().FirstOf(collective.bucket_id) > Sequence(0);
    if (whole || called || !OutlivesMembers(collective.spec)) return;
    std::vector<Verdict> uncalled;
    session_.calls.ForEach(collective.id, [&](CallId call, const OpenCall&) {
      uncalled.push_back({.call = call, .discard = true});
    });
    lifecycle_.Apply(now, std::move(uncalled));
    collective.deferred.reset();
    collective.final_drain = Collective::FinalDrain::kVoid;
  });
}

// ---- Calls that end before they begin.

bool CallGate::FailAll(Instant now, const Status& why) {
  bool any = false;
  for (PendingCall& pending : pending_) {
    if (pending.given_up) continue;
    Fail(now, pending, why);
    any = true;
  }
  return any;
}

void CallGate::Fail(Instant now, PendingCall& pending, Status why) {
  pending.given_up = why;
  lifecycle_.Report({.token = pending.submission.token,
                     .status = std::move(why),
                     .stats = {.elapsed = now - pending.since, .slowest = session_.options.rank}});
}

void CallGate::HandleTimeout(Instant now) {
  for (PendingCall& pending : pending_) {
    // One that waits for its turn begins by itself.
    const bool begins = pending.waits_until != kNever;
    if (pending.given_up || begins || now < waits_.ExpiresAt(pending.since)) continue;
    Fail(now, pending,
         {StatusCode::kDeadlineExceeded,
          "jax_optireduce: " + Describe(pending.submission.spec, pending.submission.sequence) +
              " has waited " + RoundedSeconds(now - pending.since) +
              " (call_timeout_s) for the ranks to agree on which of them take part in it",
          {.cause = Cause::kCallTimeout}});
  }
}

Instant CallGate::timeout() const {
  Instant at = kNever;
  for (const PendingCall& pending : pending_) {
    if (pending.given_up) continue;
    const bool begins = pending.waits_until != kNever;
    at = std::min(at, begins ? pending.waits_until : waits_.ExpiresAt(pending.since));
  }
  return at;
}

}  // namespace optireduce
