#include "ffi/protocol/membership/connectivity.h"

#include <iterator>
#include <utility>

namespace optireduce {
namespace {

// Chosen: a report holds for half a peer_timeout, many times its repetition.
constexpr int kReportsPerTimeout = 2;

}  // namespace

Connectivity::Connectivity(Rank self, std::uint16_t world_size, std::uint16_t lanes,
                           Duration peer_timeout, Duration last_chance, Slices slices)
    : self_(self),
      peer_timeout_(peer_timeout),
      last_chance_(last_chance),
      slices_(slices),
      others_(world_size) {
  for (Other& other : others_) other.paths.resize(lanes);
}

// ---- Evidence.

bool Connectivity::Hear(Instant now, std::uint16_t lane, Rank rank) {
  Path& heard = path(lane, rank);
  heard.heard_at = now;
  return !heard.unusable && std::exchange(heard.suspected, false);
}

bool Connectivity::Suspect(std::uint16_t lane, Rank rank) {
  return !std::exchange(path(lane, rank).suspected, true);
}

void Connectivity::SetUnusable(std::uint16_t lane, Rank rank, bool unusable) {
  path(lane, rank).unusable = unusable;
}

void Connectivity::SuspectSilent(Instant now, Instant since, std::span<const Rank> members) {
  for (const Rank member : members) {
    if (member == self_) continue;
    for (Path& each : others_[member.index()].paths) {
      if (now - std::max(each.heard_at, since) >= peer_timeout_) each.suspected = true;
    }
  }
}

void Connectivity::HandleReport(Instant now, Rank from, const std::vector<Rank>& suspects) {
  Other& other = others_[from.index()];
  // An outdated report is no evidence for the time since then.
  const bool reports = Reports(now, from);
  if (!reports) other.suspects_since = now;
  if (!reports || !std::ranges::binary_search(other.suspects, self_)) other.suspects_us_since = now;
  other.suspects = suspects;
  other.reported_at = now;
}

void Connectivity::ClearReports() {
  for (Other& other : others_) other.suspects.clear();
}

// ---- Conclusions.

bool Connectivity::HeardLately(Instant now, Instant since, std::uint16_t lane, Rank rank) const {
  const Path& heard = other(rank).paths[lane];
  return heard.heard_at >= since && HeardLately(now, heard);
}

bool Connectivity::HeardLately(Instant now, const Path& heard) const {
  return now - heard.heard_at < peer_timeout_ / kAnswersPerTimeout;
}

bool Connectivity::Reports(Instant now, Rank rank) const {
  return !other(rank).suspects.empty() &&
         now - other(rank).reported_at < peer_timeout_ / kReportsPerTimeout;
}

bool Connectivity::Reaches(Instant now, Rank rank) const {
  const Other& there = other(rank);
  if (there.suspected()) return false;
  const bool suspects_us = Reports(now, rank) && std::ranges::binary_search(there.suspects, self_);
  return !suspects_us || now - there.suspects_us_since < peer_timeout_;
}

std::vector<Rank> Connectivity::WholeReached(Instant now, std::span<const Rank> members) const {
  std::vector<Rank> reached;
  std::ranges::copy_if(members, std::back_inserter(reached),
                       [&](Rank rank) { return Reaches(now, rank); });
  return slices_.WholeAmong(reached);
}

bool Connectivity::InDoubt(Instant now, std::span<const Rank> members) const {
  return std::ranges::any_of(
      members, [&](Rank rank) { return other(rank).suspected() || Reports(now, rank); });
}

bool Connectivity::IsParted(Instant now, std::span<const Rank> members) const {
  return std::ranges::any_of(members, [&](Rank rank) {
    return !Reaches(now, rank) ||
           (Reports(now, rank) && now - other(rank).suspects_since >= peer_timeout_);
  });
}

std::vector<Rank> Connectivity::SuspectsAmong(std::span<const Rank> members) const {
  std::vector<Rank> suspects;
  std::ranges::copy_if(members, std::back_inserter(suspects), [&](Rank rank) {
    return rank == self_ ? SuspectsItself({}, members, rank) : other(rank).suspected();
  });
  return suspects;
}

std::vector<Rank> Connectivity::SuspectedByAny(std::span<const Rank> ranks) const {
  std::vector<Rank> suspected;
  std::ranges::copy_if(ranks, std::back_inserter(suspected), [&](Rank rank) {
    return other(rank).suspected() || std::ranges::any_of(others_, [&](const Other& by) {
             return std::ranges::binary_search(by.suspects, rank);
           });
  });
  return suspected;
}

bool Connectivity::SuspectsItself(Instant now, std::span<const Rank> ranks, Rank rank) const {
  if (rank != self_) return Suspects(now, rank, rank);
  return std::ranges::any_of(
      ranks, [&](Rank each) { return std::ranges::any_of(other(each).paths, &Path::unusable); });
}

bool Connectivity::Suspects(Instant now, Rank a, Rank b) const {
  if (a == self_) return !Reaches(now, b);
  if (!Reports(now, a) || !std::ranges::binary_search(other(a).suspects, b)) return false;
  // It may have been cut off itself, and hear `b` again in a moment.
  return now - other(a).suspects_since >= last_chance_;
}

bool Connectivity::IsToBlame(Instant now, std::span<const Rank> ranks, Rank rank,
                             Rank other) const {
  if (Suspects(now, other, rank) && !SuspectsItself(now, ranks, other)) return true;
  return Suspects(now, rank, other) && SuspectsItself(now, ranks, rank);
}

std::vector<Connectivity::Unreached> Connectivity::UnreachedAmong(
    Instant now, std::span<const Rank> ranks) const {
  std::vector<Unreached> unreached;
  for (const Rank rank : ranks) {
    Unreached each{.expendable = !slices_.AreTogether(rank, Rank(0)), .rank = rank};
    for (const Rank another : ranks) {
      if (another == rank) continue;
      each.pairs += Suspects(now, another, rank) || Suspects(now, rank, another);
      each.blamed += IsToBlame(now, ranks, rank, another);
    }
    if (each.pairs == 0) continue;
    if (!unreached.empty() && slices_.AreTogether(unreached.back().rank, rank)) {
      each.pairs += unreached.back().pairs;
      each.blamed += unreached.back().blamed;
      unreached.pop_back();
    }
    unreached.push_back(each);
  }
  std::ranges::sort(unreached);
  return unreached;
}

std::vector<Rank> Connectivity::Agreeable(Instant now, std::vector<Rank> ranks) const {
  ranks = slices_.WholeAmong(ranks);
  while (true) {
    const std::vector<Unreached> unreached = UnreachedAmong(now, ranks);
    if (unreached.empty()) return ranks;
    const Rank most = unreached.back().rank;
    std::erase_if(ranks, [&](Rank rank) { return slices_.AreTogether(rank, most); });
  }
}

bool Connectivity::IsPartlySilent(Instant now, Rank rank) const {
  return other(rank).suspected() && std::ranges::any_of(other(rank).paths, [&](const Path& each) {
           return (!each.suspected || each.unusable) && HeardLately(now, each);
         });
}

bool Connectivity::HearsUnusable(Instant now, std::span<const Rank> members) const {
  return std::ranges::any_of(members, [&](Rank rank) {
    return std::ranges::any_of(other(rank).paths, [&](const Path& each) {
      return each.unusable && HeardLately(now, each);
    });
  });
}

bool Connectivity::LacksEvidence(Instant now, std::span<const Rank> members) const {
  const auto partly = [&](Rank rank) { return IsPartlySilent(now, rank); };
  if (std::ranges::none_of(members, partly)) return false;
  const std::vector<Unreached> all = UnreachedAmong(now, members);
  if (all.empty()) return false;
  const bool tie = all.size() > 1 && all[all.size() - 2].pairs == all.back().pairs;
  return tie || slices_.AreTogether(all.back().rank, self_);
}

}  // namespace optireduce
