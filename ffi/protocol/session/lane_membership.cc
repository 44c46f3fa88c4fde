#include "ffi/protocol/session/lane_membership.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ffi/protocol/session/error_text.h"

namespace optireduce {
namespace {

// Source: a majority of two ranks is both of them, so neither can continue alone.
constexpr std::uint16_t kWorldSizeMin = 3;

std::shared_ptr<SharedMembership> Choose(const EndpointOptions& options,
                                         std::shared_ptr<SharedMembership> of_all_lanes) {
  if (options.world_size < kWorldSizeMin) return nullptr;
  if (of_all_lanes) return of_all_lanes;
  return std::make_shared<SharedMembership>(options.rank, options.world_size, options.peer_timeout,
                                            /*lanes=*/1, Slices(options.ranks_per_slice),
                                            options.absent);
}

}  // namespace

LaneMembership::LaneMembership(SessionState& session,
                               std::shared_ptr<SharedMembership> of_all_lanes)
    : session_(session),
      shared_(Choose(session.options, std::move(of_all_lanes))),
      lane_(session.options.lane) {
  View& all = views_.emplace_back();
  for (std::uint16_t r = 0; r < session.options.world_size; ++r) all.members.emplace_back(r);
  if (!session.options.absent.empty()) AdoptNext();
}

Status LaneMembership::WhyStuck(Instant now) const {
  const std::uint16_t per_slice = session_.options.ranks_per_slice;
  const bool slices = per_slice > 1;
  const std::size_t members = view().members.size() / per_slice;
  const std::size_t connected = shared_->Open()->Connected(now) / per_slice;
  std::string missing;
  Blame blame{.cause = Cause::kPeerLost};
  for (const Peer& peer : session_.peers.others()) {
    if (peer.removed() || !peer.unreachable()) continue;
    missing += "; " + peer.why();
    blame.ranks.push_back(peer.rank);
  }
  const std::string counts = std::to_string(connected) + " of the " + std::to_string(members) +
                             (slices ? " slices of the session" : " ranks of the session");
  return {StatusCode::kUnavailable,
          "jax_optireduce: " +
              (connected * 2 > members
                   ? counts + " are left, but they could not agree to go on without the others"
                   : "only " + counts +
                         (slices ? " can reach each other with all their ranks, and it takes "
                                 : " can reach each other, this one included, and it takes ") +
                         std::to_string(members / 2 + 1) + " to go on without the others") +
              missing,
          std::move(blame)};
}

std::string LaneMembership::WhyLost() const {
  const EndpointOptions& options = session_.options;
  if (options.ranks_per_slice == 1) return ": the others had not heard it";
  const std::vector<Rank> slice = Slices(options.ranks_per_slice).SliceOf(options.rank);
  const auto names = [](std::span<const Rank> ranks) {
    std::string text = ranks.size() > 1 ? "ranks " : "rank ";
    for (const Rank rank : ranks) {
      text += (rank == ranks.front() ? "" : ", ") + std::to_string(rank.value());
    }
    return text;
  };
  const std::vector<Rank>& lost = shared_->Open()->lost_with();
  return " with its slice, " + names(slice) + ": the others had not heard " +
         (lost.empty() ? "all of these" : names(lost));
}

Status LaneMembership::WhyRemoved() const {
  if (!removed()) return {};
  const EndpointOptions& options = session_.options;
  return {StatusCode::kUnavailable,
          "jax_optireduce: this rank, " + std::to_string(options.rank.value()) +
              ", was removed from the session" + WhyLost() + " for more than " +
              RoundedSeconds(options.peer_timeout) + " (peer_timeout_s)" +
              (options.lanes > 1 ? " on one of its lanes" : "") + ", and " +
              std::to_string(view().members.size()) +
              " of them go on without it. Start its process again: jax_optireduce.join() takes its "
              "place in the job",
          {.cause = Cause::kPeerLost, .ranks = {options.rank}}};
}

bool LaneMembership::UseFor(const CollectiveSpec& spec) {
  if (!shared_ || followed_ || !OutlivesMembers(spec)) return false;
  shared_->Open().Use();
  return true;
}

bool LaneMembership::Hear(Instant now, const Header& header, std::span<const std::byte> payload) {
  const bool membership = header.kind == DatagramKind::kMembership;
  if (!shared_ || !(membership || in_use())) return false;
  const bool first_use = !in_use();
  // The sender has called a collective that this rank does not know yet.
  if (first_use) shared_->Open().Use();
  if (first_use) Follow(now);
  return HearMember(now, header, payload) || first_use;
}

bool LaneMembership::HearMember(Instant now, const Header& header,
                                std::span<const std::byte> payload) {
  const bool membership = header.kind == DatagramKind::kMembership;
  const Peer& from = *session_.peers[header.source];
  // A rank that has left has no vote: it would be heard, and suspected again at once.
  if (from.state() == PeerState::kLeft) return false;
  const bool heard = from.removed() || shared_->facts().asks();
  if (heard) shared_->Open()->Heard(now, lane_, header.source);
  if (membership && !shared_->Open()->Handle(now, lane_, header.source, payload)) {
    ++session_.counters.rejected_malformed;
  }
  return heard || membership;
}

void LaneMembership::SetUnusable(Instant now, Rank rank, bool unusable) {
  if (in_use()) shared_->Open()->SetUnusable(now, lane_, rank, unusable);
}

std::uint32_t LaneMembership::Skipped(const Collective& origin) {
  return shared_->Open().skipped().Of(origin.bucket_id);
}

std::uint32_t LaneMembership::Skip(const Collective& origin, Sequence position, Sequence number) {
  return shared_->Open().skipped().Begin(origin.bucket_id, position, number);
}

bool LaneMembership::TryStart(const Collective& origin, const Collective& in_view,
                              Sequence sequence) {
  // A view tells of a successor whether it had a call.
  return shared_->Open()->TryStart(
      view().number, {.collective = origin.bucket_id, .sequence = sequence}, in_view.bucket_id);
}

void LaneMembership::Follow(Instant now) {
  due_ = true;
  const MembershipFacts facts = shared_->facts();
  changes_ = facts.changes;
  const bool first = !std::exchange(followed_, true);
  for (const Peer& peer : session_.peers.others()) {
    if (first && peer.black_hole) SetUnusable(now, peer.rank, true);
    // A rank that has left is missed where a call needs it, or where others agree anyway.
    const bool missed = peer.left() && facts.timeout != kNever;
    if (missed || (first && peer.silent())) Suspect(now, peer.rank);
  }
}

bool LaneMembership::AdoptNext() {
  std::optional<View> next;
  {
    SharedMembership::Access membership = shared_->Open();
    const auto newer = [&](const View& known) { return known.number > view().number; };
    const auto earlier = std::ranges::find_if(membership->earlier(), newer);
    if (earlier != membership->earlier().end()) {
      next = *earlier;
    } else if (newer(membership->view())) {
      next = membership->view();
    }
  }
  if (!next) return false;
  // The last of several views with the same members is kept.
  if (next->members == view().members) views_.pop_back();
  views_.push_back(std::move(*next));
  return true;
}

Instant LaneMembership::timeout() const {
  if (!in_use()) return kNever;
  const MembershipFacts facts = shared_->facts();
  return facts.changes != changes_ ? Instant{} : facts.timeout;
}

bool LaneMembership::HandleTimeout(Instant now) {
  if (!in_use()) return false;
  const MembershipFacts facts = shared_->facts();
  if (now >= facts.timeout) shared_->Open()->HandleTimeout(now);
  return now >= facts.timeout || facts.changes != changes_;
}

std::optional<Membership::Outgoing> LaneMembership::Poll(Instant now, std::span<std::byte> out) {
  if (!due_) return std::nullopt;
  const auto message = shared_->Open()->Poll(now, lane_, out);
  due_ = message.has_value();
  return message;
}

}  // namespace optireduce
