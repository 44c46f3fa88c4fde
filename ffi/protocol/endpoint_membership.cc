// Ranks that are silent for too long, in sessions with collectives that go on without them: the
// members of a call, calls that must wait for an agreement, and what is left of the calls before.
//
// Without a rank a collective is another one (other members, another layout): the successor. The
// last call of the old one is its final drain, a drain that no program makes: it brings everything
// that was late among those who are left. What it returns comes with a call of the successor.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/protocol/endpoint_impl.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Source: more than half must be left; of two, one is not.
constexpr std::uint16_t kWorldSizeMin = 3;

}  // namespace

std::shared_ptr<SharedMembership> Endpoint::Impl::MakeMembership(const EndpointOptions& options) {
  if (options.world_size < kWorldSizeMin) return nullptr;
  if (options.membership) return options.membership;
  return std::make_shared<SharedMembership>(options.rank, options.world_size, options.peer_timeout,
                                            /*lanes=*/1);
}

void Endpoint::Impl::UseMembership(Instant now) {
  membership_->Open().Use();
  FollowMembership(now);
}

Result<Collective*> Endpoint::Impl::Learn(Instant now, const CollectiveSpec& spec) {
  if (membership_ && !uses_membership_ && IsBounded(spec)) UseMembership(now);
  const std::size_t known = directory_.size();
  Result<Collective*> learnt = directory_.Learn(spec);
  if (directory_.size() > known) peers_.ShareWindows(spec);
  admission_.NoteChange();
  return learnt;
}

std::vector<Rank> Endpoint::Impl::silent() const {
  std::vector<Rank> ranks;
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    const bool missed = peers_[r] && !peers_[r]->left && (peers_[r]->lost || peers_[r]->removed);
    if (missed) ranks.emplace_back(r);
  }
  return ranks;
}

std::vector<Rank> Endpoint::Impl::unreached() const {
  std::vector<Rank> ranks;
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    const bool asked = leaving_ && peers_[r] && !peers_[r]->gone();
    if (asked && peers_[r]->farewell != Peer::Farewell::kDelivered) ranks.emplace_back(r);
  }
  return ranks;
}

// ---- The agreement.

void Endpoint::Impl::HearMember(Instant now, const Header& header,
                                std::span<const std::byte> payload) {
  const bool membership = header.kind == DatagramKind::kMembership;
  if (!membership_ || !(membership || Agrees())) return;
  // The sender has called a collective that this rank does not know yet.
  if (!Agrees()) UseMembership(now);
  const Peer& from = peer(header.source);
  // One that has left has no say any more: it would be heard, and suspected again at once.
  const bool message = membership && (from.removed || !from.left);
  const bool heard = from.removed || (membership_->facts().asks() && !from.left);
  if (!heard && !message) return;
  if (heard) membership_->Open()->Heard(now, lane_, header.source);
  if (message && !membership_->Open()->Handle(now, lane_, header.source, payload)) {
    ++counters_.rejected_malformed;
  }
  FollowMembership(now);
}

void Endpoint::Impl::Lose(Instant now, Rank silent, std::string why) {
  Peer& other = peer(silent);
  if (!other.lost) {
    other.lost = std::move(why);
    other.awaited = Agrees();
    Forget(now, silent);
  }
  if (!Agrees()) return;
  membership_->Open()->Suspect(now, lane_, silent);
  FollowMembership(now);
}

void Endpoint::Impl::FollowMembership(Instant now) {
  membership_due_ = true;
  const MembershipFacts facts = membership_->facts();
  changes_ = facts.changes;
  const bool first_use = !std::exchange(uses_membership_, true);
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    if (!peers_[r]) continue;
    if (first_use && peers_[r]->black_hole) {
      membership_->Open()->SetUnusable(now, lane_, Rank(r), true);
    }
    // One that has left is missed only where a call needs it, or others go on without somebody.
    const bool missed = peers_[r]->left && facts.timeout != kNever;
    if (!missed && !(first_use && peers_[r]->lost)) continue;
    membership_->Open()->Suspect(now, lane_, Rank(r));
  }
  AdoptViews(now);
  // Where no call was told, all is kept: the others may come back.
  if (membership_->facts().stuck && FailAll(now, WhyStuck(now), /*only_bounded=*/true))
    ReleaseLost(now);
}

void Endpoint::Impl::AdoptViews(Instant now) {
  std::vector<View> newer;
  {
    SharedMembership::Access membership = membership_->Open();
    const auto add = [&](const View& known) {
      if (known.number > view().number) newer.push_back(known);
    };
    for (const View& known : membership->earlier()) add(known);
    add(membership->view());
  }
  for (View& next : newer) {
    // Of those with the same members the last.
    if (next.members == view().members) views_.pop_back();
    views_.push_back(std::move(next));
    BeginView(now);
  }
}

void Endpoint::Impl::ReleaseLost(Instant now) {
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    if (!peers_[r] || !peers_[r]->lost || !peers_[r]->awaited) continue;
    peers_[r]->awaited = false;
    Forget(now, Rank(r));
  }
}

void Endpoint::Impl::BeginView(Instant now) {
  const std::vector<Rank>& members = view().members;
  if (!view().Has(options_.rank)) {
    removed_ = Status(
        StatusCode::kUnavailable,
        "jax_optireduce: this rank, " + std::to_string(options_.rank.value()) +
            ", was removed from the session: the others had not heard it for more than " +
            RoundedSeconds(options_.peer_timeout) + " (peer_timeout_s)" +
            (options_.membership ? " on one of its lanes" : "") + ", and " +
            std::to_string(members.size()) +
            " of them go on without it. It cannot come back: to have it take part again, start "
            "the whole job again from a checkpoint");
    FailAll(now, *removed_, /*only_bounded=*/false);
    // Nobody takes what its earlier calls still have for them.
    for (std::uint16_t r = 0; r < options_.world_size; ++r) {
      if (!peers_[r] || peers_[r]->gone()) continue;
      peers_[r]->removed = "this rank was removed from the session";
      Forget(now, Rank(r));
    }
    return;
  }
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    if (!peers_[r] || peers_[r]->removed || view().Has(Rank(r))) continue;
    peers_[r]->removed = "rank " + std::to_string(r) + " was removed from the session, and " +
                         std::to_string(members.size()) + " ranks go on without it";
    if (peers_[r]->black_hole) *peers_[r]->removed += ": " + *peers_[r]->lost;
    Forget(now, Rank(r));
  }
  // What only those who are gone have called has no final drain.
  directory_.ForEach([&](Collective& collective) {
    const bool whole = std::ranges::all_of(collective.spec.members,
                                           [&](Rank member) { return view().Has(member); });
    const bool called = view().FirstOf(collective.bucket_id) > Sequence(0);
    if (whole || called || !IsBounded(collective.spec)) return;
    calls_.EraseIf(
        [&](const Exchange& exchange) { return exchange.call().collective == collective.id; });
    collective.deferred.reset();
    collective.final_drain = Collective::FinalDrain::kVoid;
  });
}

std::optional<Transmit> Endpoint::Impl::SendMembership(Instant now, std::span<std::byte> buffer) {
  if (!membership_due_) return std::nullopt;
  const auto message = membership_->Open()->Poll(
      now, lane_, buffer.subspan(kHeaderBytes).first(kMembershipBytesMax));
  if (message) return transmitter_.SealMembership(message->to, message->bytes, buffer);
  membership_due_ = false;
  return std::nullopt;
}

Status Endpoint::Impl::WhyStuck(Instant now) const {
  const std::size_t members = view().members.size();
  const std::size_t connected = membership_->Open()->Connected(now);
  std::string missing;
  for (const Peer& peer : peers_.others()) {
    if (!peer.removed && peer.unreachable()) missing += "; " + peer.why_gone();
  }
  const std::string counts =
      std::to_string(connected) + " of the " + std::to_string(members) + " ranks of the session";
  return {StatusCode::kUnavailable,
          "jax_optireduce: " +
              (connected * 2 > members
                   ? counts + " are left, but they could not agree to go on without the others"
                   : "only " + counts + " can reach each other, this one included, and it takes " +
                         std::to_string(members / 2 + 1) + " to go on without the others") +
              missing};
}

void Endpoint::Impl::Cancel(Instant now, const Status& why) {
  FailAll(now, why, /*only_bounded=*/false);
}

bool Endpoint::Impl::FailAll(Instant now, const Status& why, bool only_bounded) {
  std::vector<CallId> failing;
  for (const auto& [call, active] : calls_) {
    const Exchange& exchange = active.exchange;
    const bool concerned = !only_bounded || IsBounded(exchange.collective().spec);
    if (concerned && call.sequence != kFinalDrain && exchange.submitted() && !exchange.finished()) {
      failing.push_back(call);
    }
  }
  for (const CallId call : failing) Fail(now, call, why);
  bool any = !failing.empty();
  for (Held& held : held_) {
    if (held.given_up) continue;
    FailHeld(now, held, why);
    any = true;
  }
  // Peers learn otherwise that this rank leaves, or that too few are left to go on.
  if (leaving_ || removed_ || only_bounded) held_.clear();
  return any;
}

void Endpoint::Impl::FailHeld(Instant now, Held& held, Status why) {
  ++counters_.calls_failed;
  held.given_up = why;
  const CallStats stats{.elapsed = now - held.since, .slowest = options_.rank};
  events_.push_back({.token = held.submission.token, .status = std::move(why), .stats = stats});
}

// ---- The members of a call.

Result<Collective*> Endpoint::Impl::Effective(Collective& origin, Sequence sequence) {
  Collective* effective = &origin;
  Sequence first(0);
  for (const View& next_view : views_) {
    const Sequence next_first = next_view.FirstOf(origin.bucket_id);
    if (sequence < next_first) break;
    CollectiveSpec spec = origin.spec;
    std::erase_if(spec.members, [&](Rank member) { return !next_view.Has(member); });
    if (spec.members != effective->spec.members) {
      Result<Collective*> learnt = directory_.Learn(spec);
      if (!learnt.ok()) return learnt.status();
      Collective& next = *learnt.value();
      if (next.predecessor == nullptr) {
        next.predecessor = effective;
        // All who are left know from the agreement whether there was a call.
        if (next_first > first) {
          effective->final_drain = Collective::FinalDrain::kWanted;
          awaiting_final_drain_.push_back(effective);
        }
      }
      effective = &next;
      first = next_first;
    }
  }
  return effective;
}

bool Endpoint::Impl::MustHold(Instant now, const Collective& effective,
                              const Submission& submission) {
  if (submission.drain) {
    for (const Collective* c = effective.predecessor; c != nullptr; c = c->predecessor) {
      using enum Collective::FinalDrain;
      if (c->final_drain == kWanted || c->final_drain == kUnderWay) return true;
    }
  }
  bool left = false;
  for (const Rank member : effective.spec.members) {
    if (member == options_.rank || !peer(member).left || peer(member).removed) continue;
    if (calls_.HasCalled(effective, submission, member)) continue;
    left = true;
    membership_->Open()->Suspect(now, lane_, member);
  }
  if (left) FollowMembership(now);
  return left;
}

bool Endpoint::Impl::TryStart(const Collective& origin, const Collective& effective,
                              Sequence sequence) {
  // What a view says of the successor is whether there was a call.
  return membership_->Open()->TryStart(
      view().number, {.collective = origin.bucket_id, .sequence = sequence}, effective.bucket_id);
}

void Endpoint::Impl::GoOn(Instant now) {
  // A final drain that is over may let a drain begin; a call that begins may want a final drain.
  for (bool again = true; again;) {
    again = false;
    bool frozen = false;
    std::vector<CollectiveId> waiting;
    for (std::size_t i = 0; i < held_.size();) {
      const Submission& next = held_[i].submission;
      Collective& origin = *directory_.Find(IdOf(next.spec));
      const std::uint32_t number = view().number;
      Result<Collective*> effective = Effective(origin, next.sequence);
      const bool behind = std::ranges::find(waiting, origin.id) != waiting.end();
      const bool given_up = held_[i].given_up.has_value();
      bool waits =
          effective.ok() && (behind || (!given_up && MustHold(now, *effective.value(), next)));
      if (i >= held_.size()) return;  // all of them have failed meanwhile
      if (view().number != number) {
        again = true;
        break;
      }
      if (!waits && effective.ok() && !TryStart(origin, *effective.value(), next.sequence)) {
        waits = frozen = true;
      }
      if (waits) {
        // Others of the same collective stay behind it.
        waiting.push_back(origin.id);
        ++i;
        continue;
      }
      Held held = std::move(held_[i]);
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      again = true;
      if (!effective.ok()) {
        if (!given_up) FailHeld(now, held, effective.status());
        continue;
      }
      const Sequence sequence = held.submission.sequence;
      if (given_up) {
        GiveUpUncalled(now, *effective.value(), held.submission, *held.given_up);
      } else {
        held.submission.held = now - held.since;
        Begin(now, *effective.value(), std::move(held.submission));
      }
      origin.submitted = sequence;
    }
    if (frozen) return;
    const auto begins = [&](Collective* old) { return BeginFinalDrain(now, *old); };
    again = std::erase_if(awaiting_final_drain_, begins) > 0 || again;
  }
}

// ---- What is left of the calls before.

void Endpoint::Impl::AdoptUnsent(const Collective& successor, const BucketView& bucket) {
  for (Collective* before = successor.predecessor; before != nullptr;
       before = before->predecessor) {
    if (!before->deferred) continue;
    for (std::uint16_t m = 0; m < before->layout.members(); ++m) {
      if (successor.MemberOf(before->RankOf(MemberIndex(m)))) continue;
      before->deferred->MoveDeferredSends(MemberIndex(m), bucket);
    }
  }
}

bool Endpoint::Impl::BeginFinalDrain(Instant now, Collective& collective) {
  bool under_way = false;
  std::vector<CallId> uncalled;
  calls_.ForEach(collective.id, [&](CallId call, OpenCall& active) {
    const Exchange& exchange = active.exchange;
    if (call.sequence == kFinalDrain) return;
    under_way = under_way || (exchange.submitted() && !exchange.finished());
    if (!exchange.submitted() && !exchange.over()) uncalled.push_back(call);
  });
  if (under_way) return false;
  for (const CallId call : uncalled) {
    Exchange& exchange = calls_.At(call).exchange;
    if (!exchange.drains()) {
      exchange.Close(now);
      NoteFolded(call);
    } else {
      calls_.Erase(call);
    }
  }
  const CallId call{.collective = collective.id, .sequence = kFinalDrain};
  auto* const open = calls_.Find(call);
  OpenCall& active =
      open != nullptr ? *open : calls_.Open(now, collective, kFinalDrain, /*drain=*/true);
  active.final_drain = pool_.Take(collective.layout.bytes());
  if (active.final_drain.size() > 0) {
    std::memset(active.final_drain.data(), 0, active.final_drain.size());
  }
  collective.final_drain = Collective::FinalDrain::kUnderWay;
  SubmitTo(now, collective,
           {.spec = collective.spec,
            .sequence = kFinalDrain,
            .leaves = {{.data = active.final_drain.data(), .elements = collective.spec.elements}},
            .drain = true});
  // What still comes of it is a repetition.
  collective.folded = kFinalDrain;
  if (!held_.empty()) next_tick_ = std::min(next_tick_, now);
  return true;
}

void Endpoint::Impl::EndFinalDrain(OpenCall& active) {
  Collective& collective = *directory_.Find(active.exchange.collective().id);
  for (std::uint32_t s = 0; s < collective.layout.segments(); ++s) {
    const ByteRange range = collective.layout.Segment(SegmentIndex(s));
    collective.deferred->late_results().Add(
        SegmentIndex(s), {active.final_drain.data() + range.offset, range.bytes});
  }
  active.final_drain = Buffer();
  collective.final_drain = Collective::FinalDrain::kDone;
}

}  // namespace optireduce
