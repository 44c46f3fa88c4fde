#include "ffi/sim/removal_checker.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <utility>

#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/wire/wire.h"
#include "ffi/sim/call_parts.h"
#include "ffi/sim/call_values.h"

namespace optireduce {
namespace {

bool Has(const std::vector<Rank>& ranks, Rank rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

std::vector<Rank> Within(const std::vector<Rank>& members, const std::vector<Rank>& view) {
  std::vector<Rank> within;
  std::ranges::set_intersection(members, view, std::back_inserter(within));
  return within;
}

// One holds all ranks of the other, and more.
bool AreNested(const std::vector<Rank>& a, const std::vector<Rank>& b) {
  return a.size() > b.size() ? std::ranges::includes(a, b)
                             : a.size() < b.size() && std::ranges::includes(b, a);
}

}  // namespace

void RemovalChecker::RecordView(Instant now, Rank rank, std::vector<Rank> view) {
  const auto smaller = std::ranges::find_if(
      log_.views, [&](const std::vector<Rank>& known) { return known.size() <= view.size(); });
  if (smaller != log_.views.end() && *smaller == view) return;
  if (!std::ranges::includes(log_.views.front(), view)) {
    return log_.Fail(now, rank, "the ranks go on with one whose place is empty");
  }
  if (!std::ranges::all_of(log_.views, [&](auto& known) { return AreNested(known, view); })) {
    return log_.Fail(now, rank, "the ranks go on in two groups");
  }
  for (const Rank member : log_.views.front()) {
    const std::vector<Rank> slice = log_.scenario.slices().SliceOf(member);
    if (std::ranges::any_of(slice, [&](Rank of) { return Has(view, of) != Has(view, member); })) {
      return log_.Fail(now, rank, "the ranks go on with a part of a slice");
    }
    const auto silent = [&](Rank of) { return WasSilent(now, of); };
    if (Has(view, member) || std::ranges::any_of(slice, silent)) continue;
    return log_.Fail(
        now, rank, "rank " + std::to_string(member.value()) + " was removed, though it was there");
  }
  log_.views.insert(smaller, std::move(view));
}

bool RemovalChecker::WasSilent(Instant now, Rank rank) const {
  const Scenario& s = log_.scenario;
  const RankRecord& seen = log_.ranks[rank.index()];
  if (seen.left_at) return true;
  if (!s.IsRemovable(rank)) return false;
  if (rank.value() == s.narrow_rank() && bounds_.MayGiveUpPath(now)) return true;
  // Its return may have come too late for the agreement.
  if (seen.silent_until && now - *seen.silent_until <= bounds_.Agreement()) return true;
  for (std::size_t lane = 0; lane < s.lanes; ++lane) {
    if (WasSilentOn(now, rank, lane)) return true;
  }
  return false;
}

bool RemovalChecker::WasSilentOn(Instant now, Rank rank, std::size_t lane) const {
  const auto unheard = [&](Rank by, Rank of) {
    return by != of &&
           log_.IsSilentSince(now, log_.ranks[by.index()].lanes[lane].heard[of.index()]);
  };
  const std::vector<Rank>& all = log_.views.front();
  // A rank that does not hear most of the others is cut off as one that is not heard.
  const auto misses = std::ranges::count_if(all, [&](Rank other) { return unheard(rank, other); });
  return 2 * static_cast<std::size_t>(misses) >= all.size() ||
         std::ranges::any_of(all, [&](Rank other) { return unheard(other, rank); });
}

// ---------------------------------------------------------------------------------- at the end

void RemovalChecker::Finish(Instant now) {
  if (!log_.scenario.goes_on()) return;
  for (std::size_t c = 0; c < log_.workload.collectives().size(); ++c) CheckCollective(now, c);
}

void RemovalChecker::CheckCollective(Instant now, std::size_t collective) {
  const SimCollective& of = log_.workload.collectives()[collective];
  CheckLive(now, collective);
  const std::vector<GoneOwners> owners = GoneOwnersOf(of);
  const std::vector<double>* first = nullptr;
  for (const Rank member : Within(of.spec.members, log_.last_view())) {
    // It may have been removed later than it knows.
    if (log_.scenario.IsRemovable(member)) continue;
    CheckLosses(now, collective, member, owners);
    const std::vector<double>& got = results_.TotalOf(collective, member);
    if (first == nullptr) first = &got;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!owners[i].empty() || got[i] == (*first)[i]) continue;
      return log_.Fail(now, member,
                       "the ranks that are left have not got the same of '" + of.spec.description +
                           "': " + results_.Describe(of, i, got[i]) + "; elsewhere " +
                           results_.Describe(of, i, (*first)[i]));
    }
  }
}

std::vector<RemovalChecker::GoneOwners> RemovalChecker::GoneOwnersOf(
    const SimCollective& collective) const {
  std::vector<GoneOwners> gone(collective.spec.elements);
  for (const std::vector<Rank>& view : log_.views) AddGoneOwners(collective, view, gone);
  return gone;
}

void RemovalChecker::AddGoneOwners(const SimCollective& collective, const std::vector<Rank>& view,
                                   std::vector<GoneOwners>& gone) const {
  CollectiveSpec spec = collective.spec;
  spec.members = Within(spec.members, view);
  if (spec.members.size() < 2) return;
  const std::size_t element_bytes = SizeOf(spec.element_type);
  std::size_t begin = 0;  // the part's first element
  for (const BucketPart& part : CutBucket({.spec = spec, .sequence = {}, .leaves = {}},
                                          log_.scenario.lanes, kSimCutBytesMin)) {
    const BucketLayout layout(
        part.submission.spec.elements, element_bytes,
        static_cast<std::uint16_t>(spec.members.size()),
        SegmentBytesMax(part.submission.spec, log_.scenario.datagram_bytes - kOverheadBytes));
    for (std::uint16_t m = 0; m < spec.members.size(); ++m) {
      if (Has(log_.last_view(), spec.members[m])) continue;
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

void RemovalChecker::CheckLive(Instant now, std::size_t collective) {
  std::map<Sequence, Live> live;  // one for each number
  for (const SimCallRecord& record : log_.calls) {
    if (record.call.collective != collective || !record.live) continue;
    if (!Has(log_.last_view(), record.rank)) continue;
    for (const auto& part : record.parts) {
      if (!part || part->passed) continue;
      const auto first = live.try_emplace(part->number, Live{record.rank, part->live}).first;
      if (first->second.members == part->live) continue;
      return log_.Fail(now, record.rank,
                       Text(part->number, collective) + std::to_string(part->live) +
                           " live members, and " + std::to_string(first->second.members) +
                           " at rank " + std::to_string(first->second.rank.value()));
    }
    CheckLiveOf(now, record);
  }
  const CollectiveSpec& spec = log_.workload.collectives()[collective].spec;
  std::size_t before = spec.members.size();
  for (const auto& [number, seen] : live) {
    if (seen.members > before) {
      return log_.Fail(now, seen.rank,
                       Text(number, collective) + "more live members than the one before");
    }
    before = seen.members;
  }
}

std::string RemovalChecker::Text(Sequence number, std::size_t collective) const {
  return "call " + std::to_string(number.value()) + " of '" +
         log_.workload.collectives()[collective].spec.description + "' counts ";
}

void RemovalChecker::CheckLiveOf(Instant now, const SimCallRecord& record) {
  const SimCollective& of = log_.workload.collectives()[record.call.collective];
  const std::size_t live = *record.live;
  const auto fail = [&](const std::string& why) {
    log_.Fail(now, record.rank,
              "call " + std::to_string(record.call.index) + " of '" + of.spec.description +
                  "' counts " + std::to_string(live) + " live members" + why);
  };
  if (MembersOf(record.call.collective, live).empty()) {
    return fail(", which no view has");
  }
  if (!log_.workload.IsDrain(of, record.call) || !record.whole) return;
  // A rank that has drained it has heard from all of them.
  const auto called =
      static_cast<std::size_t>(std::ranges::count(log_.calls, record.call, &SimCallRecord::call));
  if (live > called) fail("; " + std::to_string(called) + " have drained it");
}

std::vector<Rank> RemovalChecker::MembersOf(std::size_t collective, std::size_t members) const {
  const std::vector<Rank>& all = log_.workload.collectives()[collective].spec.members;
  for (const std::vector<Rank>& view : log_.views) {
    if (std::vector<Rank> within = Within(all, view); within.size() == members) return within;
  }
  return {};
}

std::vector<const SimCallRecord*> RemovalChecker::EndedCalls(Rank rank,
                                                             std::size_t collective) const {
  std::vector<const SimCallRecord*> calls;
  for (const SimCallRecord& record : log_.calls) {
    const bool same = record.rank == rank && record.call.collective == collective;
    if (same && record.live) calls.push_back(&record);
  }
  return calls;
}

bool RemovalChecker::MayBeLost(Rank rank, SimCall call, const GoneOwners& owners) const {
  const std::vector<const SimCallRecord*> calls = EndedCalls(rank, call.collective);
  const auto made =
      std::ranges::find(calls, call.index, [](auto* each) { return each->call.index; });
  // One that failed is anywhere.
  if (made == calls.end()) return !owners.empty();
  // The contribution to a call that a rank has passed goes with its next one.
  if (std::ranges::any_of((*made)->parts, [](const auto& part) { return part && part->passed; })) {
    const auto next = std::next(made);
    if (next != calls.end() && MayBeLost(rank, (*next)->call, owners)) return true;
  }
  // True if the part of the call with the owner's element had so many members.
  const auto is_of = [](const SimCallRecord& each, const GoneOwner& owner) {
    return each.parts[owner.lane] && each.parts[owner.lane]->live == owner.members;
  };
  const auto owner =
      std::ranges::find_if(owners, [&](const GoneOwner& each) { return is_of(**made, each); });
  if (owner == owners.end()) return false;
  // Its long sums do not pass, though it takes contributions and is heard.
  const Scenario& s = log_.scenario;
  if (s.narrows_one_path() && owner->rank.index() == s.narrow_rank()) return true;
  // A call begins where the window to the owner has room, which only datagrams of the owner make.
  // Earlier deferred data goes with it.
  const Instant heard = log_.ranks[rank.index()].lanes[owner->lane].heard[owner->rank.index()];
  const auto since = std::count_if(calls.begin(), made + 1, [&](const SimCallRecord* each) {
    return is_of(*each, *owner) && !each->owed[owner->lane] && each->submitted_at > heard;
  });
  if (static_cast<std::uint64_t>(since) <= log_.scenario.max_lag + 1) return true;
  // Data that has not begun joins the first call without the owner.
  const auto next = std::find_if(made, calls.end(), [&](const SimCallRecord* each) {
    const auto& part = each->parts[owner->lane];
    return part && !Has(MembersOf(call.collective, part->live), owner->rank);
  });
  return next != calls.end() && MayBeLost(rank, (*next)->call, owners);
}

void RemovalChecker::CheckLosses(Instant now, std::size_t collective, Rank rank,
                                 const std::vector<GoneOwners>& owners) {
  const SimCollective& of = log_.workload.collectives()[collective];
  const std::vector<double>& got = results_.TotalOf(collective, rank);
  for (std::size_t i = 0; i < got.size(); ++i) {
    // The rounding errors of a removed rank are lost with it, and change the digits of others.
    const auto removed = [&](const Workload::Decoded& each) {
      return !Has(log_.last_view(), of.spec.members[each.member]);
    };
    const bool inexact =
        !owners[i].empty() || std::ranges::any_of(log_.workload.DecodeTotal(of, i, 0), removed);
    if (Rounds(of.spec) && inexact) {
      CheckRoundedLoss(now, collective, rank, i, owners[i]);
    } else if (!ExplainsTotal(collective, i, got[i], owners[i])) {
      return log_.Fail(now, rank,
                       "after the last drain of '" + of.spec.description + "', " +
                           results_.Describe(of, i, got[i]) +
                           (owners[i].empty() ? "" : "; its owner was removed"));
    }
  }
}

bool RemovalChecker::ExplainsTotal(std::size_t collective, std::size_t element, double total,
                                   const GoneOwners& owners) const {
  const SimCollective& of = log_.workload.collectives()[collective];
  const Scenario& s = log_.scenario;
  // For each owner that fell silent: contributions under way to it, contributions too late for a
  // sum, and sums under way from it, each of so many calls at a time. Where ranks catch up one
  // call may bring the deferred data of any number; and the calls end by their deadline without the
  // sums that one path does not pass.
  const bool any = s.catches_up() || s.narrows_one_path();
  const std::size_t lost_max = any ? s.calls : 3 * (s.max_lag + 1) * (log_.views.size() - 1);
  std::vector<std::size_t> lost(of.spec.members.size());
  const auto explained = [&](const Workload::Decoded& each) {
    if (each.times == 1) return true;
    const Rank from = of.spec.members[each.member];
    if (!Has(log_.last_view(), from)) return each.times < 1;
    return each.times < 1 && ++lost[each.member] <= lost_max &&
           MayBeLost(from, {.collective = collective, .index = each.index}, owners);
  };
  const auto decoded = log_.workload.DecodeTotal(of, element, total);
  return !decoded.empty() && std::ranges::all_of(decoded, explained);
}

void RemovalChecker::CheckRoundedLoss(Instant now, std::size_t collective, Rank rank,
                                      std::size_t element, const GoneOwners& owners) {
  // Lost data was lost as rounded values: its digits are unknown, but the total lies between the
  // sum of the data that cannot be lost and the sum of all.
  const SimCollective& of = log_.workload.collectives()[collective];
  double kept = 0;
  double all = 0;
  for (const Workload::Decoded& each : log_.workload.DecodeTotal(of, element, 0)) {
    const Rank from = of.spec.members[each.member];
    all += each.value;
    const bool safe = Has(log_.last_view(), from) &&
                      !MayBeLost(from, {.collective = collective, .index = each.index}, owners);
    if (safe) kept += each.value;
  }
  // Sent values and their sums include earlier rounding errors, and leave errors of their own.
  const double error_max =
      2 * kRoundingSteps * StepMax(of.spec.wire_format) * log_.workload.Magnitude(of);
  const double got = results_.TotalOf(collective, rank)[element];
  const auto [least, most] = std::minmax(kept, all);
  if (got >= least - error_max && got <= most + error_max) return;
  log_.Fail(now, rank,
            "after the last drain of '" + of.spec.description + "', element " +
                std::to_string(element) + " of all calls adds up to " + std::to_string(got) +
                "; its owner was removed, and " + std::to_string(kept) + " of " +
                std::to_string(all) + " cannot be lost");
}

}  // namespace optireduce
