// The permitted errors of a call, their times, and the required contents of their messages.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "ffi/sim/checker.h"

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

bool Checker::Gone(Rank from, Rank rank) const {
  const Seen& seen = seen_[rank.index()];
  if (seen.stopped_at || seen.left_at || seen.cancelled_at) return true;
  // Those between whom nothing passes for long may give each other up.
  return scenario_.Parted(from, rank);
}

void Checker::CheckError(Instant now, const Record& record, const Status& status) {
  const std::string of = "call " + std::to_string(record.call.index) + " of '" +
                         record.collective.spec.description + "' failed: " + status.message();
  // Its own leaving is reason enough, for every mode.
  const Seen& seen = seen_[record.rank.index()];
  if (seen.left_at || (seen.cancelled_at == now && status.code() == StatusCode::kCancelled)) return;
  // All calls of a rank that was removed end, whatever their mode.
  if (SaysRemoved(record.rank, status)) return;
  if (record.collective.lossy()) return Fail(now, record.rank, "a lossy " + of);
  if (scenario_.mismatch != 0) return CheckMismatchError(now, record, status);
  if (scenario_.only_gives_up() &&
      !given_up_.contains({record.call.collective, record.call.index})) {
    return Fail(now, record.rank, "though no rank gave it up, " + of);
  }
  if (status.code() == StatusCode::kDeadlineExceeded) return CheckTooLong(now, record, status);
  // One of the others has waited for so long.
  if (Contains(status.message(), "(call_timeout_s)") && MayWaitForEver(record)) return;
  if (scenario_.goes_on() && !scenario_.IsRemovable(record.rank)) {
    return Fail(now, record.rank, "though the others go on, " + of);
  }
  if (SaysMinority(status)) return;
  const std::vector<Rank>& members = record.collective.spec.members;
  const bool named = std::ranges::any_of(members, [&](Rank member) {
    return member != record.rank && Gone(record.rank, member) && Names(status.message(), member);
  });
  if (!named) return Fail(now, record.rank, "without naming a member that is gone, " + of);
  if (Contains(status.message(), "do not arrive")) return CheckBlackHole(now, record, status);
  CheckSilence(now, record, status);
}

bool Checker::MayWaitForEver(const Record& record) const {
  const CollectiveSpec& spec = record.collective.spec;
  return spec.all_gather == LatePolicy::kWait || workload_.IsDrain(record.collective, record.call);
}

void Checker::CheckTooLong(Instant now, const Record& record, const Status& status) {
  if (scenario_.call_timeout_us == 0 || !MayWaitForEver(record)) {
    return Fail(now, record.rank, "a call that has no such limit failed: " + status.message());
  }
  if (now - record.submitted_at < microseconds(scenario_.call_timeout_us)) {
    Fail(now, record.rank, "a call failed before its limit: " + status.message());
  }
  const bool named = std::ranges::any_of(record.collective.spec.members, [&](Rank member) {
    const bool called = std::ranges::any_of(records_, [&](const Record& other) {
      return other.rank == member && other.submitted && other.call == record.call;
    });
    return member != record.rank && !called && Names(status.message(), member);
  });
  const bool held = Contains(status.message(), "for the ranks to agree");
  if (!named && !held) {
    Fail(now, record.rank, "without naming a rank that has not called, " + status.message());
  }
}

void Checker::CheckMismatchError(Instant now, const Record& record, const Status& status) {
  const std::string& own = record.collective.spec.description;
  bool other = false;
  for (std::size_t c = 0; c < workload_.collectives().size(); ++c) {
    for (std::uint16_t rank = 0; rank < scenario_.ranks; ++rank) {
      const std::string description = workload_.CollectiveAt(c, Rank(rank)).spec.description;
      other = other || (description != own && Contains(status.message(), description));
    }
  }
  // Its farewell, with the reason, may have been lost.
  const bool silent = std::ranges::any_of(record.collective.spec.members, [&](Rank member) {
    return seen_[member.index()].left_at && Names(status.message(), member) &&
           Contains(status.message(), "silent");
  });
  if (silent) return;
  if (!other || !Contains(status.message(), own)) {
    Fail(now, record.rank, "the error of a mismatch does not name both sides: " + status.message());
  }
}

Instant Checker::PathGivenUpBy() const {
  if (scenario_.mtu_at_us == 0) return Instant{};
  return Instant{} + microseconds(scenario_.mtu_at_us + scenario_.peer_timeout_us);
}

bool Checker::MayGiveUpPath(Instant now) const {
  // An earlier random loss may be the first that counts.
  return scenario_.mtu_at_us > 0 &&
         now >= Instant{} + microseconds(std::max(scenario_.mtu_at_us, scenario_.peer_timeout_us));
}

void Checker::CheckBlackHole(Instant now, const Record& record, const Status& status) {
  if (!MayGiveUpPath(now)) {
    return Fail(now, record.rank, "gave a path up too early: " + status.message());
  }
  // "datagrams of 1472 bytes to rank 2 do not arrive, those of 40 bytes do"
  const std::string& text = status.message();
  const auto number_after = [&](const std::string& words) {
    return std::strtoull(text.c_str() + text.find(words) + words.size(), nullptr, 10);
  };
  const bool sizes = Contains(text, "datagrams of ") && Contains(text, "those of ");
  if (!sizes || number_after("datagrams of ") <= scenario_.mtu_bytes ||
      number_after("those of ") > scenario_.mtu_bytes) {
    Fail(now, record.rank, "the error does not say which datagrams pass: " + text);
  }
}

Instant Checker::AskedAt(Instant now, Rank rank, Rank peer, const SeenLane& lane) const {
  Instant asked = lane.asked[peer.index()];
  for (const Record& record : records_) {
    const bool waits = record.rank == rank && record.submitted && record.done_at >= now &&
                       record.collective.HasMember(peer);
    if (waits) asked = std::min(asked, record.submitted_at);
  }
  return asked;
}

void Checker::CheckSilence(Instant now, const Record& record, const Status& status) {
  const Seen& seen = seen_[record.rank.index()];
  const Duration peer_timeout = microseconds(scenario_.peer_timeout_us);
  Instant earliest = kNever;
  Instant latest{};
  for (const Rank member : record.collective.spec.members) {
    if (member == record.rank || !Gone(record.rank, member)) continue;
    // One that left, or that ended a call by itself, has said so, which needs no silence.
    const Seen& other = seen_[member.index()];
    if (other.left_at || other.cancelled_at) earliest = Instant{};
    for (const SeenLane& lane : seen.lanes) {
      // Silence counts only from when the peer had a reason to speak.
      const Instant heard = lane.heard[member.index()];
      const Instant since = std::max(heard, AskedAt(now, record.rank, member, lane));
      earliest = std::min(earliest, SaturatingAdd(since, peer_timeout));
      latest = std::max({latest, heard, record.submitted_at});
    }
    // A refusal at once: this rank gave the peer up in a call before.
    if (!record.submitted || record.partly_refused) earliest = Instant{};
    // The others may have heard it even longer ago; NoteView() looks at that.
    if (Contains(status.message(), "was removed")) earliest = Instant{};
  }
  // A frozen rank gives up no peer.
  if (scenario_.freeze_at_us > 0 && record.rank.value() == scenario_.freeze_rank) {
    latest = std::max(latest,
                      Instant{} + microseconds(scenario_.freeze_at_us + scenario_.freeze_for_us));
  }
  if (now < earliest) {
    Fail(now, record.rank,
         "gave a peer up " + Milliseconds(earliest - now) +
             " before peer_timeout: " + status.message());
  }
  latest = latest + peer_timeout + std::min(kWatchInterval, peer_timeout / 4) + DriverSlack();
  if (now > latest) {
    Fail(now, record.rank,
         "gave a peer up " + Milliseconds(now - latest) +
             " later than peer_timeout allows: " + status.message());
  }
}

}  // namespace optireduce
