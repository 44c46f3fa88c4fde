#include "ffi/protocol/peers/refusals.h"

#include <algorithm>
#include <utility>

namespace optireduce {

// ---- The receiver.

bool Refusals::Add(CallId call, Rank rank, bool suspended) {
  const auto known = refused_.find(call.collective);
  if (known == refused_.end()) {
    if (refused_.size() >= kCollectivesMax) return false;
    refused_[call.collective] = {.first = call.sequence, .ranks = {{rank, suspended}}};
    return true;
  }
  Refused& refused = known->second;
  const bool more = call.sequence < refused.first;
  refused.first = std::min(refused.first, call.sequence);
  return refused.ranks.insert_or_assign(rank, suspended).second || more;
}

std::vector<CallId> Refusals::Of(Rank rank) const {
  std::vector<CallId> calls;
  for (const auto& [collective, refused] : refused_) {
    if (refused.ranks.contains(rank)) {
      calls.push_back({.collective = collective, .sequence = refused.first});
    }
  }
  return calls;
}

void Refusals::Forget(Rank rank) {
  for (auto& [collective, refused] : refused_) refused.ranks.erase(rank);
  std::erase_if(refused_, [](const auto& entry) { return entry.second.ranks.empty(); });
}

// ---- The sender.

std::vector<CollectiveId> RefusedCalls::Update(Instant now, std::uint64_t number,
                                               std::vector<CallId> refusals) {
  if (number < number_) return {};
  number_ = number;
  if (refusals.empty() && listed_.empty()) return {};
  // A list that is not in order is that of a confused peer.
  std::ranges::sort(refusals);
  const auto same = [](CallId a, CallId b) { return a.collective == b.collective; };
  refusals.erase(std::unique(refusals.begin(), refusals.end(), same), refusals.end());
  if (refusals == listed_) return {};
  const std::vector<CallId> before = std::exchange(listed_, std::move(refusals));
  changed_at_ = now;
  if (listed_.empty()) ask_at_ = kNever;
  std::vector<CollectiveId> lifted;
  for (const CallId& first : before) {
    if (!Listed(first)) lifted.push_back(first.collective);
  }
  return lifted;
}

bool RefusedCalls::Listed(CallId call) const {
  const auto at = std::ranges::lower_bound(listed_, call.collective, {}, &CallId::collective);
  return at != listed_.end() && at->collective == call.collective && at->sequence <= call.sequence;
}

void RefusedCalls::Refused(Instant now, CallId call) {
  if (Listed(call)) return;
  const auto at = std::ranges::find(timed_, call, &Timed::call);
  if (at != timed_.end()) {
    // Others that were sent together with it tell nothing new.
    if (now < at->until) return;
    at->until = now + std::min(now - at->since, kAskIntervalMax);
    at->waits = at->until > now;
    return;
  }
  if (timed_.size() >= kTimedMax) timed_.erase(timed_.begin());
  // It may be taken by now: the list is newer than the refusal.
  timed_.push_back({.call = call, .since = now, .until = now});
}

void RefusedCalls::Delivered(CallId call) {
  std::erase_if(timed_, [&](const Timed& timed) { return timed.call == call; });
}

bool RefusedCalls::Contains(Instant now, CallId call) const {
  if (Listed(call)) return true;
  const auto at = std::ranges::find(timed_, call, &Timed::call);
  return at != timed_.end() && now < at->until;
}

void RefusedCalls::Ask(Instant now) {
  if (ask_at_ != kNever || listed_.empty()) return;
  ask_at_ = now + std::clamp((now - changed_at_) / kAskPart, kAskIntervalMin, kAskIntervalMax);
}

bool RefusedCalls::PopAsk(Instant now) {
  if (now < ask_at_) return false;
  ask_at_ = kNever;
  return true;
}

std::vector<CallId> RefusedCalls::PopExpired(Instant now) {
  std::vector<CallId> calls;
  for (Timed& timed : timed_) {
    if (timed.waits && now >= timed.until) {
      timed.waits = false;
      calls.push_back(timed.call);
    }
  }
  return calls;
}

Instant RefusedCalls::timeout() const {
  Instant at = ask_at_;
  for (const Timed& timed : timed_) {
    if (timed.waits) at = std::min(at, timed.until);
  }
  return at;
}

void RefusedCalls::Clear() {
  listed_.clear();
  timed_.clear();
  ask_at_ = kNever;
}

}  // namespace optireduce
