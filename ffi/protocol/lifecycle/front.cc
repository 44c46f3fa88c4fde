#include "ffi/protocol/lifecycle/front.h"

#include <algorithm>
#include <optional>

namespace optireduce {

std::vector<Rank> Front::FindOthers(const Collective& origin) const {
  std::vector<Rank> others;
  for (const Rank member : origin.spec.members) {
    const bool other = member != session_.options.rank && !session_.peers[member]->removed();
    if (other) others.push_back(member);
  }
  return others;
}

bool Front::HasMade(const Collective& origin, Rank member, Sequence call) const {
  if (member == session_.options.rank) return origin.submitted && *origin.submitted >= call;
  bool made = false;
  session_.directory.ForEach([&](const Collective& collective) {
    const std::optional<MemberIndex> index = collective.MemberOf(member);
    if (&collective.Origin() != &origin || !index) return;
    const std::optional<Collective::Sign>& newest = collective.newest_call[index->index()];
    made = made || (newest && newest->sequence >= call && !newest->skipped);
  });
  return made;
}

std::vector<Rank> Front::Find(const Collective& origin) const {
  const Sequence none(0);
  const Sequence newest =
      std::max(origin.others_calls.newest().value_or(none), origin.submitted.value_or(none));
  std::vector<Rank> others = FindOthers(origin);
  std::vector<Rank> front;
  std::ranges::copy_if(others, std::back_inserter(front),
                       [&](Rank member) { return HasMade(origin, member, newest); });
  const bool unknown = front.empty() && !HasMade(origin, session_.options.rank, newest);
  return unknown ? others : front;
}

bool Front::Drains(const Collective& origin) const {
  const std::optional<Sequence> newest = origin.others_calls.newest();
  const bool behind = newest && !HasMade(origin, session_.options.rank, *newest);
  const std::vector<Rank> ranks = behind ? Find(origin) : FindOthers(origin);
  return !ranks.empty() &&
         std::ranges::all_of(ranks, [&](Rank member) { return origin.WaitsInDrain(member); });
}

std::optional<Rank> Front::FindGoingOn(const Collective& origin) const {
  std::vector<Rank> stopped{session_.options.rank};
  if (!HasStopped(origin, stopped)) return std::nullopt;
  return std::ranges::min(stopped);
}

bool Front::HasStopped(const Collective& origin, std::vector<Rank>& stopped) const {
  return std::ranges::all_of(Find(origin),
                             [&](Rank member) { return HasStopped(origin, member, stopped); });
}

bool Front::HasStopped(const Collective& origin, Rank member, std::vector<Rank>& stopped) const {
  if (std::ranges::find(stopped, member) != stopped.end()) return true;
  const bool left = session_.peers[member]->state() == PeerState::kLeft;
  if (left || origin.WaitsInDrain(member)) return true;
  const std::optional<CallId> skipped = origin.presence->WaitsAfter(member);
  if (!skipped) return false;
  const Collective& elsewhere = session_.directory.Find(skipped->collective)->Origin();
  const Sequence next(skipped->sequence.value() + 1);
  const bool begun =
      elsewhere.others_calls.newest() >= next || HasMade(elsewhere, session_.options.rank, next);
  if (begun) return false;
  stopped.push_back(member);
  return HasStopped(elsewhere, stopped);
}

}  // namespace optireduce
