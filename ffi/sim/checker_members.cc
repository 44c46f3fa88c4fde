// The invariants of removals: the remaining ranks, the data that only removed ranks may lose, and
// the time of an agreement.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/wire/wire.h"
#include "ffi/sim/call_parts.h"
#include "ffi/sim/checker.h"
#include "ffi/sim/result_check.h"

namespace optireduce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// From when a rank is suspected to a decision without it. Chosen: the last chance of the suspect,
// and ballots that find a third of their messages lost, see kLastChance and kPatience of
// membership.cc.
constexpr Duration kAgreementMax = milliseconds(2000);

bool Has(const std::vector<Rank>& ranks, Rank rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

std::vector<Rank> Within(const std::vector<Rank>& members, const std::vector<Rank>& view) {
  std::vector<Rank> within;
  std::ranges::set_intersection(members, view, std::back_inserter(within));
  return within;
}

}  // namespace

Duration Checker::AgreementBound() const {
  const std::uint64_t silent = scenario_.removals_max();
  if (silent == 0) return {};
  // The coordinator may fall silent, too, for a while or for good, which takes peer_timeout to
  // notice.
  std::uint64_t silence_us = (silent - 1) * scenario_.peer_timeout_us;
  if (!scenario_.cut_is_long()) silence_us += scenario_.cut_for_us;
  if (!scenario_.freeze_is_long()) silence_us += scenario_.freeze_for_us;
  if (!scenario_.lane_cut_is_long()) silence_us += scenario_.lane_cut_for_us;
  // Ranks that hear no peer, but are heard, disturb the others until they give up.
  if (scenario_.part_is_long() && scenario_.part_one_way != 0) {
    silence_us += scenario_.peer_timeout_us;
  }
  return silent * kAgreementMax + microseconds(silence_us);
}

Duration Checker::SilenceBound() const {
  return scenario_.removals_max() *
         (kAgreementMax + 2 * Duration(microseconds(scenario_.peer_timeout_us)));
}

void Checker::NoteView(Instant now, Rank rank, std::vector<Rank> view) {
  const auto smaller = std::ranges::find_if(
      views_, [&](const std::vector<Rank>& known) { return known.size() <= view.size(); });
  if (smaller != views_.end() && *smaller == view) return;
  for (const std::vector<Rank>& known : views_) {
    const bool larger = known.size() > view.size();
    const std::vector<Rank>& large = larger ? known : view;
    const std::vector<Rank>& small = larger ? view : known;
    if (large.size() == small.size() || !std::ranges::includes(large, small)) {
      return Fail(now, rank, "the ranks go on in two groups");
    }
  }
  for (const Rank member : views_.front()) {
    if (Has(view, member) || WasSilent(now, member)) continue;
    return Fail(now, rank,
                "rank " + std::to_string(member.value()) + " was removed, though it was there");
  }
  views_.insert(smaller, std::move(view));
}

bool Checker::IsSilentSince(Instant now, Instant heard) const {
  return now - heard >= microseconds(scenario_.peer_timeout_us);
}

bool Checker::WasSilent(Instant now, Rank rank) const {
  const Seen& seen = seen_[rank.index()];
  if (seen.left_at) return true;
  if (!scenario_.IsRemovable(rank)) return false;
  if (rank.value() == scenario_.mtu_rank && MayGiveUpPath(now)) return true;
  // Its return may have come too late for the agreement.
  if (seen.silent_until && now - *seen.silent_until <= AgreementBound()) return true;
  const std::vector<Rank>& all = views_.front();
  for (std::size_t lane = 0; lane < scenario_.lanes; ++lane) {
    const auto unheard = std::ranges::count_if(all, [&](Rank other) {
      return other != rank && IsSilentSince(now, seen.lanes[lane].heard[other.index()]);
    });
    // A rank that does not hear most of the others is cut off as one that is not heard.
    if (2 * static_cast<std::size_t>(unheard) >= all.size()) return true;
    const bool silent = std::ranges::any_of(all, [&](Rank other) {
      const SeenLane& by = seen_[other.index()].lanes[lane];
      return other != rank && IsSilentSince(now, by.heard[rank.index()]);
    });
    if (silent) return true;
  }
  return false;
}

bool Checker::SaysRemoved(Rank rank, const Status& status) const {
  const std::string says = "this rank, " + std::to_string(rank.value()) + ", was removed";
  return scenario_.IsRemovable(rank) && status.message().find(says) != std::string::npos;
}

bool Checker::SaysMinority(const Status& status) const {
  return std::ranges::any_of(views_, [&](const std::vector<Rank>& view) {
    const std::string says = " of the " + std::to_string(view.size()) + " ranks of the session";
    return status.message().find(says) != std::string::npos;
  });
}

// ---------------------------------------------------------------------------------- at the end

std::vector<std::vector<Checker::GoneOwner>> Checker::GoneOwnersOf(
    const SimCollective& collective) const {
  std::vector<std::vector<GoneOwner>> gone(collective.spec.elements);
  const std::size_t element_bytes = SizeOf(collective.spec.element_type);
  for (const std::vector<Rank>& view : views_) {
    CollectiveSpec spec = collective.spec;
    spec.members = Within(spec.members, view);
    if (spec.members.size() < 2) continue;
    std::size_t begin = 0;  // of the part
    for (const BucketPart& part : CutBucket({.spec = spec, .sequence = {}, .leaves = {}},
                                            scenario_.lanes, kSimCutBytesMin)) {
      const BucketLayout layout(part.submission.spec.elements, element_bytes,
                                static_cast<std::uint16_t>(spec.members.size()),
                                scenario_.datagram_bytes - kOverheadBytes);
      for (std::uint16_t m = 0; m < spec.members.size(); ++m) {
        if (Has(last_view(), spec.members[m])) continue;
        const ByteRange shard = layout.Shard(MemberIndex(m));
        const std::size_t first = begin + shard.offset / element_bytes;
        for (std::size_t i = first; i < first + shard.bytes / element_bytes; ++i) {
          gone[i].push_back({.rank = spec.members[m],
                             .members = spec.members.size(),
                             .lane = static_cast<std::uint16_t>(part.lane)});
        }
      }
      begin += part.submission.spec.elements;
    }
  }
  return gone;
}

void Checker::CheckLive(Instant now, std::size_t collective) {
  const SimCollective& of = workload_.collectives()[collective];
  std::map<std::size_t, std::pair<Rank, std::uint16_t>> live;  // by call
  for (const Record& record : records_) {
    if (record.call.collective != collective || !record.live) continue;
    if (!Has(last_view(), record.rank)) continue;
    const std::string call = "call " + std::to_string(record.call.index) + " of '" +
                             of.spec.description + "' counts " + std::to_string(*record.live) +
                             " live members";
    const auto [first, is_new] = live.try_emplace(record.call.index, record.rank, *record.live);
    if (first->second.second != *record.live) {
      return Fail(now, record.rank,
                  call + ", and " + std::to_string(first->second.second) + " at rank " +
                      std::to_string(first->second.first.value()));
    }
    const bool is_view = std::ranges::any_of(views_, [&](const std::vector<Rank>& view) {
      return Within(of.spec.members, view).size() == *record.live;
    });
    if (!is_view) return Fail(now, record.rank, call + ", which no view has");
    // A rank that has drained it has heard from all of them.
    const auto called = std::ranges::count_if(records_, [&](const Record& other) {
      return other.call.collective == collective && other.call.index == record.call.index;
    });
    if (!workload_.IsDrain(of, record.call) || !record.whole || *record.live <= called) continue;
    return Fail(now, record.rank, call + "; " + std::to_string(called) + " have drained it");
  }
  std::uint16_t before = static_cast<std::uint16_t>(of.spec.members.size());
  for (const auto& [index, seen] : live) {
    if (seen.second > before) {
      return Fail(now, seen.first,
                  "call " + std::to_string(index) + " of '" + of.spec.description +
                      "' counts more live members than the one before");
    }
    before = seen.second;
  }
}

std::vector<Rank> Checker::MembersOf(std::size_t collective, std::size_t members) const {
  const std::vector<Rank>& all = workload_.collectives()[collective].spec.members;
  for (const std::vector<Rank>& view : views_) {
    if (std::vector<Rank> within = Within(all, view); within.size() == members) return within;
  }
  return {};
}

bool Checker::MayBeLost(Rank rank, SimCall call, const std::vector<GoneOwner>& owners) const {
  std::vector<const Record*> calls;  // of the rank, in their order
  for (const Record& record : records_) {
    const bool same = record.rank == rank && record.call.collective == call.collective;
    if (same && record.live) calls.push_back(&record);
  }
  const auto made =
      std::ranges::find(calls, call.index, [](auto* each) { return each->call.index; });
  // One that failed is anywhere.
  if (made == calls.end()) return !owners.empty();
  const std::uint16_t live = *(*made)->live;
  const auto owner = std::ranges::find(owners, live, &GoneOwner::members);
  if (owner == owners.end()) return false;
  // A call begins where the window to the owner has room, which only datagrams of the owner make.
  // Earlier deferred data goes with it.
  const Instant heard = seen_[rank.index()].lanes[owner->lane].heard[owner->rank.index()];
  const auto since = std::count_if(calls.begin(), made + 1, [&](const Record* each) {
    return each->live == live && !each->owed[owner->lane] && each->submitted_at > heard;
  });
  if (static_cast<std::uint64_t>(since) <= scenario_.max_lag + 1) return true;
  // Data that has not begun joins the first call without the owner.
  const auto next = std::find_if(made, calls.end(), [&](const Record* each) {
    return !Has(MembersOf(call.collective, *each->live), owner->rank);
  });
  return next != calls.end() && MayBeLost(rank, (*next)->call, owners);
}

void Checker::CheckLosses(Instant now, std::size_t collective, Rank rank,
                          const std::vector<std::vector<GoneOwner>>& owners) {
  const SimCollective& of = workload_.collectives()[collective];
  const std::vector<double>& got = totals_[{collective, rank.index()}];
  // For each owner that fell silent: contributions under way to it, contributions too late for a
  // sum, and sums under way from it, each of so many calls at a time. With on_lag="suspend" one
  // call may bring the deferred data of any number.
  const std::size_t lost_max =
      scenario_.suspend != 0 ? scenario_.calls : 3 * (scenario_.max_lag + 1) * (views_.size() - 1);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (Rounds(of.spec) && !owners[i].empty()) {
      CheckRoundedLoss(now, collective, rank, i, owners[i]);
      continue;
    }
    const auto shown = workload_.ShownBy(of, i, got[i]);
    std::vector<std::size_t> lost(of.spec.members.size());
    const bool wrong = std::ranges::any_of(shown, [&](const Workload::Shown& each) {
      if (each.times == 1) return false;
      const Rank from = of.spec.members[each.member];
      const bool gone = !Has(last_view(), from);
      // The rounding errors of its values are lost with it: the digits of its calls mix.
      if (gone && Rounds(of.spec)) return false;
      if (each.times > 1) return true;
      if (gone) return false;
      return ++lost[each.member] > lost_max ||
             !MayBeLost(from, {.collective = collective, .index = each.index}, owners[i]);
    });
    if (!shown.empty() && !wrong) continue;
    return Fail(now, rank,
                "after the last drain of '" + of.spec.description + "', " +
                    Describe(of, i, got[i]) + (owners[i].empty() ? "" : "; its owner was removed"));
  }
}

void Checker::CheckRoundedLoss(Instant now, std::size_t collective, Rank rank, std::size_t element,
                               const std::vector<GoneOwner>& owners) {
  // Lost data was lost as rounded values: its digits are unknown, but the total lies between the
  // sum of the data that cannot be lost and the sum of all.
  const SimCollective& of = workload_.collectives()[collective];
  double kept = 0;
  double all = 0;
  for (const Workload::Shown& each : workload_.ShownBy(of, element, 0)) {
    const Rank from = of.spec.members[each.member];
    all += each.value;
    const bool safe = Has(last_view(), from) &&
                      !MayBeLost(from, {.collective = collective, .index = each.index}, owners);
    if (safe) kept += each.value;
  }
  // Sent values and their sums include earlier rounding errors, and leave errors of their own.
  const double error_max = 2 * kRoundingSteps * kStepMax * workload_.Magnitude(of);
  const double got = totals_[{collective, rank.index()}][element];
  const auto [least, most] = std::minmax(kept, all);
  if (got >= least - error_max && got <= most + error_max) return;
  Fail(now, rank,
       "after the last drain of '" + of.spec.description + "', element " + std::to_string(element) +
           " of all calls adds up to " + std::to_string(got) + "; its owner was removed, and " +
           std::to_string(kept) + " of " + std::to_string(all) + " cannot be lost");
}

void Checker::CheckRemovals(Instant now) {
  if (!scenario_.goes_on()) return;
  for (std::size_t c = 0; c < workload_.collectives().size(); ++c) {
    const SimCollective& collective = workload_.collectives()[c];
    CheckLive(now, c);
    const std::vector<std::vector<GoneOwner>> owners = GoneOwnersOf(collective);
    const std::vector<double>* first = nullptr;
    for (const Rank member : Within(collective.spec.members, last_view())) {
      // It may have been removed later than it knows.
      if (scenario_.IsRemovable(member)) continue;
      CheckLosses(now, c, member, owners);
      const std::vector<double>& got = totals_[{c, member.index()}];
      if (first == nullptr) first = &got;
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (!owners[i].empty() || got[i] == (*first)[i]) continue;
        return Fail(now, member,
                    "the ranks that are left have not got the same of '" +
                        collective.spec.description + "': " + Describe(collective, i, got[i]) +
                        "; elsewhere " + Describe(collective, i, (*first)[i]));
      }
    }
  }
}

}  // namespace optireduce
