#include "ffi/sim/error_checker.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

namespace optireduce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Longest delay of the detection of a dead peer beyond peer_timeout.
// Source: kReportInterval of mismatch_detector.h, the longest pause between two looks.
constexpr Duration kWatchInterval = milliseconds(500);

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool Names(const std::string& text, Rank rank) {
  const std::string name = "rank " + std::to_string(rank.value());
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const std::size_t next = at + name.size();
    // "rank 1" is not named by "rank 12".
    if (next == text.size() || text[next] < '0' || text[next] > '9') return true;
  }
  return false;
}

}  // namespace

bool ErrorChecker::EndedItself(Instant now, const SimCallRecord& record,
                               const Status& status) const {
  const RankRecord& seen = log_.ranks[record.rank.index()];
  if (seen.left_at) return true;
  if (seen.cancelled_at == now && status.code() == StatusCode::kCancelled) return true;
  // All calls of a rank that was removed end, whatever their mode.
  const std::string removed = "this rank, " + std::to_string(record.rank.value()) + ", was removed";
  return log_.scenario.IsRemovable(record.rank) && Contains(status.message(), removed);
}

void ErrorChecker::Check(Instant now, const SimCallRecord& record, const Status& status) {
  const Scenario& s = log_.scenario;
  const auto fail = [&](const std::string& why) {
    log_.Fail(now, record.rank, why + record.Name() + " failed: " + status.message());
  };
  if (EndedItself(now, record, status)) return;
  if (record.collective.lossy()) return fail("a lossy ");
  // Calls other than a lone call fail only as its rank leaves.
  const bool others = s.sim_mismatch() == SimMismatch::kLoneCall &&
                      record.call.collective + 1 < log_.workload.collectives().size();
  if (s.mismatch != 0 && !others) return CheckMismatch(now, record, status);
  if (s.only_gives_up() && !log_.WasGivenUp(record.call)) {
    return fail("though no rank gave it up, ");
  }
  if (status.code() == StatusCode::kDeadlineExceeded) return CheckTooLong(now, record, status);
  // One of the others has waited for so long.
  if (Contains(status.message(), "(call_timeout_s)") && record.WaitsForAll()) return;
  if (s.goes_on() && !s.IsRemovable(record.rank)) return fail("though the others go on, ");
  if (!SaysMinority(status)) CheckGone(now, record, status);
}

bool ErrorChecker::Gone(Rank from, Rank rank) const {
  return std::ranges::any_of(log_.scenario.slices().SliceOf(rank), [&](Rank of) {
    const RankRecord& seen = log_.ranks[of.index()];
    // A rank that leaves after its last call takes nothing with it that another one needs.
    const bool left = seen.left_at && log_.scenario.has_failure();
    if (seen.stopped_at || left || seen.cancelled_at) return true;
    // Ranks between which nothing passes for long may give each other up.
    return log_.scenario.Parted(from, of);
  });
}

void ErrorChecker::CheckGone(Instant now, const SimCallRecord& record, const Status& status) {
  const std::vector<Rank>& members = record.collective.spec.members;
  // A rank that has cancelled calls, and continues, hears of that from the others.
  const bool cancelled = log_.ranks[record.rank.index()].cancelled_at &&
                         Contains(status.message(), std::string(kInterrupted));
  const bool named = std::ranges::any_of(members, [&](Rank member) {
    const bool may_be_gone = member != record.rank || cancelled;
    return may_be_gone && Gone(record.rank, member) && Names(status.message(), member);
  });
  if (!named) {
    return log_.Fail(
        now, record.rank,
        "without naming a member that is gone, " + record.Name() + " failed: " + status.message());
  }
  if (Contains(status.message(), "do not arrive")) return CheckBlackHole(now, record, status);
  CheckSilence(now, record, status);
}

bool ErrorChecker::SaysMinority(const Status& status) const {
  return std::ranges::any_of(log_.views, [&](const std::vector<Rank>& view) {
    const std::uint64_t per_slice = log_.scenario.ranks_per_slice;
    const std::string says = " of the " + std::to_string(view.size() / per_slice) +
                             (per_slice > 1 ? " slices" : " ranks") + " of the session";
    return Contains(status.message(), says);
  });
}

bool ErrorChecker::NamesUncalled(Instant now, const SimCallRecord& record,
                                 const Status& status) const {
  return std::ranges::any_of(record.collective.spec.members, [&](Rank member) {
    const bool called = std::ranges::any_of(log_.calls, [&](const SimCallRecord& other) {
      // The news of a call takes a while.
      const bool known = other.submitted && other.submitted_at + bounds_.Lag() < now;
      return other.rank == member && known && other.call == record.call;
    });
    return member != record.rank && !called && Names(status.message(), member);
  });
}

void ErrorChecker::CheckTooLong(Instant now, const SimCallRecord& record, const Status& status) {
  const std::uint64_t limit_us = log_.scenario.call_timeout_us;
  const bool held = Contains(status.message(), "for the ranks to agree");
  // Others that have gone may leave too few to agree on.
  const bool parted = held && std::ranges::any_of(record.collective.spec.members, [&](Rank member) {
                        return Gone(record.rank, member);
                      });
  if (limit_us == 0 || !(record.WaitsForAll() || parted)) {
    return log_.Fail(now, record.rank, "a call that has no such limit failed: " + status.message());
  }
  if (now - record.submitted_at < microseconds(limit_us)) {
    log_.Fail(now, record.rank, "a call failed before its limit: " + status.message());
  }
  if (held || NamesUncalled(now, record, status)) return;
  log_.Fail(now, record.rank, "without naming a rank that has not called, " + status.message());
}

bool ErrorChecker::NamesOther(const SimCallRecord& record, const Status& status) const {
  const std::string& own = record.collective.spec.description;
  for (std::size_t c = 0; c < log_.workload.collectives().size(); ++c) {
    for (std::uint16_t rank = 0; rank < log_.scenario.ranks; ++rank) {
      const std::string other = log_.workload.CollectiveAt(c, Rank(rank)).spec.description;
      if (other != own && Contains(status.message(), other)) return true;
    }
  }
  return false;
}

void ErrorChecker::CheckMismatch(Instant now, const SimCallRecord& record, const Status& status) {
  // Its farewell, with the reason, may have been lost.
  const bool silent = std::ranges::any_of(record.collective.spec.members, [&](Rank member) {
    return log_.ranks[member.index()].left_at && Names(status.message(), member) &&
           Contains(status.message(), "silent");
  });
  const std::string& own = record.collective.spec.description;
  if (silent || (NamesOther(record, status) && Contains(status.message(), own))) return;
  log_.Fail(now, record.rank,
            "the error of a mismatch does not name both sides: " + status.message());
}

void ErrorChecker::CheckBlackHole(Instant now, const SimCallRecord& record, const Status& status) {
  if (!bounds_.MayGiveUpPath(now)) {
    return log_.Fail(now, record.rank, "gave a path up too early: " + status.message());
  }
  // "datagrams of 1472 bytes to rank 2 do not arrive, those of 40 bytes do"
  const std::string& text = status.message();
  const auto number_after = [&](const std::string& words) {
    return std::strtoull(text.c_str() + text.find(words) + words.size(), nullptr, 10);
  };
  const bool sizes = Contains(text, "datagrams of ") && Contains(text, "those of ");
  if (!sizes || number_after("datagrams of ") <= log_.scenario.mtu_bytes ||
      number_after("those of ") > log_.scenario.mtu_bytes) {
    log_.Fail(now, record.rank, "the error does not say which datagrams pass: " + text);
  }
}

Instant ErrorChecker::AskedAt(Instant now, Rank rank, Rank peer, const LaneRecord& lane) const {
  Instant asked = lane.asked[peer.index()];
  for (const SimCallRecord& record : log_.calls) {
    const bool waits = record.rank == rank && record.submitted && record.done_at >= now &&
                       record.collective.HasMember(peer);
    if (waits) asked = std::min(asked, record.submitted_at);
  }
  return asked;
}

ErrorChecker::GiveUpTime ErrorChecker::GiveUpTimeOf(Instant now, const SimCallRecord& record,
                                                    Rank member, const Status& status) const {
  const RankRecord& peer = log_.ranks[member.index()];
  // A peer that left or ended a call has said so, and so has one that gave up, whose own error is
  // checked. A refusal at once: this rank gave the peer up in a call before. The others may have
  // heard a removed rank even longer ago, which RecordView() checks.
  const bool at_once = peer.left_at || peer.cancelled_at || !record.submitted ||
                       record.partly_refused || Contains(status.message(), "was removed") ||
                       Contains(status.message(), " has stopped with this error: ");
  GiveUpTime time;
  if (at_once) time.earliest = Instant{};
  for (const LaneRecord& lane : log_.ranks[record.rank.index()].lanes) {
    // Silence counts only from when the peer had a reason to speak.
    const Instant heard = lane.heard[member.index()];
    const Instant since = std::max(heard, AskedAt(now, record.rank, member, lane));
    time.earliest =
        std::min(time.earliest, SaturatingAdd(since, microseconds(log_.scenario.peer_timeout_us)));
    time.latest = std::max({time.latest, heard, record.submitted_at});
  }
  return time;
}

void ErrorChecker::CheckSilence(Instant now, const SimCallRecord& record, const Status& status) {
  const Scenario& s = log_.scenario;
  const Duration peer_timeout = microseconds(s.peer_timeout_us);
  GiveUpTime any;
  for (const Rank member : record.collective.spec.members) {
    if (member == record.rank || !Gone(record.rank, member)) continue;
    const GiveUpTime time = GiveUpTimeOf(now, record, member, status);
    any.earliest = std::min(any.earliest, time.earliest);
    any.latest = std::max(any.latest, time.latest);
  }
  // A frozen rank gives up no peer.
  if (s.freeze_at_us > 0 && record.rank.value() == s.freeze_rank) {
    any.latest = std::max(any.latest, At(s.freeze_at_us + s.freeze_for_us));
  }
  if (now < any.earliest) {
    log_.Fail(now, record.rank,
              "gave a peer up " + Milliseconds(any.earliest - now) +
                  " before peer_timeout: " + status.message());
  }
  const Instant latest = any.latest + peer_timeout + std::min(kWatchInterval, peer_timeout / 4) +
                         bounds_.DriverSlack();
  if (now > latest) {
    log_.Fail(now, record.rank,
              "gave a peer up " + Milliseconds(now - latest) +
                  " later than peer_timeout allows: " + status.message());
  }
}

}  // namespace optireduce
