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
namespace {

// Chosen: errors are rare, and after a few of them a program has ended.
constexpr std::size_t kDisagreedMax = 64;

// The error of a call that cannot be completed since `rank` has ended it, or another, with one.
Status FailureOf(Rank rank, std::uint8_t flags, const std::string& why, const std::string& ours,
                 std::string_view advice) {
  constexpr std::string_view kStopped = " has stopped with this error: ";
  const bool disagreed = (flags & kFlagDisagreed) != 0;
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
  if (disagreed) cause += advice;
  return {disagreed ? StatusCode::kInvalidArgument : StatusCode::kAborted,
          "jax_optireduce: " + ours + " cannot be completed: " + cause};
}

}  // namespace

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
  if (collective.carry) {
    // Results of it may be under way.
    for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
      collective.carry->NoteResults(MemberIndex(m), sequence, /*complete=*/false);
    }
  }
  const bool waited_for = spec.reduce_scatter == LatePolicy::kWait ||
                          spec.all_gather == LatePolicy::kWait || (call.drain && Carries(spec));
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
  TellGivenUp(collective, sequence, why.message(), kFlagGaveUp);
}

void Endpoint::Impl::TellGivenUp(Collective& collective, Sequence sequence, const std::string& why,
                                 std::uint8_t flags) {
  const bool advises = why.ends_with(kAdvice);
  const GivenUpCalls::Interval calls = collective.given_up[collective.self].Add(
      {.first = sequence, .last = sequence, .flags = flags},
      why.substr(0, why.size() - (advises ? kAdvice.size() : 0)));
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || peer(member).gone()) continue;
    QueueGivenUp(peer(member), {.collective = collective.id, .sequence = sequence}, calls);
  }
}

void Endpoint::Impl::QueueGivenUp(Peer& to, CallId call, const GivenUpCalls::Interval& calls) {
  // One announcement tells all of the interval.
  const bool queued = to.control.AnyOf([&](const Cargo& cargo) {
    return cargo.call.collective == call.collective && cargo.flags == calls.flags &&
           calls.Contains(cargo.call.sequence);
  });
  if (queued) return;
  to.control.push_back(
      {.kind = DatagramKind::kAnnouncement, .flags = calls.flags, .call = call, .segment = {}});
}

// ---- What peers give up.

void Endpoint::Impl::HandleGivenUp(Instant now, const Header& header, Collective& collective,
                                   const std::string& why) {
  const Rank from = header.source;
  const GivenUpCalls::Interval news{
      .first = Sequence(header.call.sequence.value() - header.segment.value()),
      .last = header.call.sequence,
      .flags = header.flags};
  const bool known = DisagreementKnown(header.call);
  std::vector<CallId> failing;
  for (const auto& [ours, active] : calls_) {
    const auto member = active.exchange.collective().MemberOf(from);
    if (!member || !Waits(active.exchange)) continue;
    // A rank that disagrees was there instead of in the calls that wait for it here; unless that
    // disagreement has already ended a call here, which these came after.
    const bool instead = (news.flags & kFlagDisagreed) && !active.exchange.heard(*member) && !known;
    const bool same = ours.collective == collective.id && news.Contains(ours.sequence);
    if (!same && !instead) continue;
    if (MayGoOnWithout(active.exchange.collective().spec, from, news.flags)) continue;
    failing.push_back(ours);
  }
  for (const CallId ours : failing) {
    const CollectiveSpec& spec = calls_.At(ours).exchange.collective().spec;
    Fail(now, ours, FailureOf(from, news.flags, why, Describe(spec, ours.sequence), kAdvice));
  }
  const MemberIndex member = *collective.MemberOf(from);
  collective.given_up[member].Add(news, why);
  collective.NoteCalled(now, member, news.last);
}

bool Endpoint::Impl::DisagreementKnown(CallId call) const {
  if (std::ranges::find(disagreed_, call) != disagreed_.end()) return true;
  const Collective& collective = *directory_.Find(call.collective);
  const auto ours = collective.given_up.find(collective.self);
  return ours != collective.given_up.end() && ours->second.Find(call.sequence) != nullptr;
}

void Endpoint::Impl::NoteDisagreement(CallId theirs) {
  disagreed_.push_back(theirs);
  if (disagreed_.size() > kDisagreedMax) disagreed_.pop_front();
}

bool Endpoint::Impl::MayGoOnWithout(const CollectiveSpec& spec, Rank from,
                                    std::uint8_t flags) const {
  if (!Survives(spec) || (flags & kFlagDisagreed) != 0) return false;
  return peer(from).removed || membership_->facts().timeout != kNever;
}

Status Endpoint::Impl::WhyGivenUp(const Collective& collective, Sequence sequence) const {
  for (const auto& [member, calls] : collective.given_up) {
    if (member == collective.self) continue;
    const GivenUpCalls::Interval* const interval = calls.Find(sequence);
    const Rank rank = collective.RankOf(member);
    if (interval == nullptr || MayGoOnWithout(collective.spec, rank, interval->flags)) continue;
    return FailureOf(rank, interval->flags, calls.why(), Describe(collective.spec, sequence),
                     kAdvice);
  }
  return {};
}

bool Endpoint::Impl::FailIfGivenUp(Instant now, const Exchange& exchange) {
  if (!Waits(exchange)) return false;
  const CallId call = exchange.call();
  Status why = WhyGivenUp(exchange.collective(), call.sequence);
  if (why.ok()) return false;
  Fail(now, call, std::move(why));
  return true;
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
  if (!Waits(exchange) || now < TooLongAfter(exchange.called_at())) return false;
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
