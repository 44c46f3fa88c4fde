#include "ffi/sim/checker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/base/prng.h"
#include "ffi/protocol/wire/wire.h"
#include "ffi/sim/hash.h"
#include "ffi/sim/result_check.h"
#include "ffi/sim/setup.h"

namespace optireduce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Bytes before and after each leaf that no code may write. Chosen: one cache line.
constexpr std::size_t kMarginBytes = 64;
constexpr std::byte kMarginValue{0xA5};

// Chosen: what a driver may be late that could not send and so does not know the next timeout.
constexpr Duration kBlockedSlack = microseconds(200);
// Longest duration of an exact call after all faults, beyond the time of its bytes.
// Source: kProbeIntervalMax of flow.cc is 1 s; chosen: two such silences in a row.
constexpr Duration kLivenessBase = std::chrono::seconds(2);
// Chosen: every byte may be sent so many times while the windows recover.
constexpr std::uint64_t kLivenessRepeats = 20;

// Chosen: a clean run sends 2 (N - 1) / N * S and the headers, and nothing twice.
constexpr double kWireExcessMax = 1.05;
// Chosen: acknowledgements and probes that a call costs between two ranks, however small it is.
constexpr std::uint64_t kControlDatagramsPerCall = 6;
// Chosen: a probe, or an acknowledgement where little was lost.
constexpr std::uint64_t kControlBytesMax = 128;
// Source: kAcknowledgeEvery and kAcknowledgeDelayMax of flow.cc.
constexpr double kAcknowledgedTogether = 8;
constexpr double kAcknowledgeDelayUs = 500;
// Chosen: one of a few words of bits.
constexpr std::uint64_t kAcknowledgementBytes = 72;
// Chosen: an announcement with the longest description of a scenario.
constexpr std::uint64_t kAnnouncementBytesMax = 512;

// Leaves of calls that are over are kept, so that writing to them is noticed. Chosen: more than
// small runs have; in others several calls of each rank.
constexpr std::size_t kLeafBytesMax = std::size_t{1} << 27;

}  // namespace

std::string Milliseconds(Duration duration) {
  return std::to_string(static_cast<double>(duration.count()) / 1e6) + " ms";
}

Checker::Checker(const Scenario& scenario, const Workload& workload)
    : scenario_(scenario), workload_(workload), seen_(scenario.ranks) {
  std::vector<Rank> all;
  for (std::uint16_t rank = 0; rank < scenario.ranks; ++rank) {
    SeenLane lane;
    lane.asked.assign(scenario.ranks, kNever);
    lane.heard.assign(scenario.ranks, Instant{});
    lane.first_heard.assign(scenario.ranks, kNever);
    seen_[rank].lanes.assign(scenario.lanes, lane);
    memory_bound_.push_back(MemoryBound(Rank(rank)));
    all.push_back(Rank(rank));
  }
  views_.push_back(std::move(all));
}

void Checker::Fail(Instant now, Rank rank, const std::string& what) {
  if (!failure_.empty()) return;
  failure_ =
      "at " + Milliseconds(now - Instant{}) + " rank " + std::to_string(rank.value()) + ": " + what;
}

Duration Checker::DriverSlack() const {
  const bool blocks = scenario_.refuse_ppm > 0 || scenario_.unaware == 0;
  return microseconds(scenario_.timer_late_us) + (blocks ? kBlockedSlack : Duration{});
}

Duration Checker::LivenessBound() const {
  std::uint64_t bytes = 0;
  std::uint64_t datagrams = 0;
  for (const SimCollective& collective : workload_.collectives()) {
    const std::uint64_t segments = collective.bytes() / (scenario_.datagram_bytes / 2) + 1;
    // A drain brings the rest of all earlier calls.
    const std::uint64_t calls = collective.defers() ? scenario_.calls + 1 : 1;
    bytes += calls * (collective.bytes() + segments * (kOverheadBytes + kWireOverheadBytes));
    datagrams += 2 * calls * (segments + collective.spec.members.size());
  }
  // Everything that all ranks send may have to pass one link.
  bytes *= 2 * scenario_.ranks * kLivenessRepeats;
  const double rate_bytes_per_s = static_cast<double>(scenario_.rate_mbps) * 1e6 / 8 /
                                  static_cast<double>(scenario_.slow_factor);
  const double wire_s = static_cast<double>(bytes) / rate_bytes_per_s;
  // A datagram may be refused, and so may its acknowledgement.
  return kLivenessBase + Duration(static_cast<Duration::rep>(wire_s * 1e9)) +
         kLivenessRepeats * (microseconds(2 * scenario_.delay_us) + DriverSlack() +
                             microseconds(scenario_.refuse_ppm > 0 ? scenario_.refuse_us : 0)) +
         microseconds(2 * datagrams * scenario_.refuse_us * scenario_.refuse_ppm / 1'000'000);
}

std::size_t Checker::MemoryBound(Rank rank) const {
  std::size_t bytes = 0;
  for (const SimCollective& collective : workload_.collectives()) {
    if (!collective.HasMember(rank)) continue;
    const std::size_t members = collective.spec.members.size();
    const std::size_t element_bytes = SizeOf(collective.spec.element_type);
    const std::size_t shard = (collective.spec.elements / members + 1) * element_bytes;
    // Contributions of the others to the own shard, and results that came before the local call.
    const std::size_t call = shard * members + collective.bytes() + element_bytes;
    // One that is under way, those that peers still acknowledge, and those they are ahead. Lossy
    // calls do not wait for each other's acknowledgements, so that more of them stay open.
    bytes += call * ((collective.lossy() ? 4 : 2) + scenario_.max_lag);
    if (!collective.defers()) continue;
    // Calls that are over here and not yet at every rank (their sums, undelivered contributions,
    // and the deferred sends that joined them), deferred sends, and late data.
    const std::size_t over = 2 * (shard * members + collective.bytes());
    bytes += over * (scenario_.max_lag + 2) + 2 * collective.bytes() + shard;
    // Rounding errors.
    if (Rounds(collective.spec)) bytes += collective.bytes();
  }
  // With other members a collective is another one, beside the one before.
  return bytes * (1 + scenario_.removals_max());
}

// ---------------------------------------------------------------------------------- calls

Submission Checker::Begin(Instant now, Rank rank, SimCall call) {
  Record record{.rank = rank,
                .call = call,
                .collective = workload_.CollectiveAt(call.collective, rank),
                .leaves = {},
                .submitted_at = now,
                .live = {},
                .whole = {},
                .parts_live = {},
                .owed = std::vector<bool>(scenario_.lanes)};
  const SimCollective& collective = record.collective;
  std::vector<std::byte> bucket(collective.bytes());
  workload_.Fill(collective, call, collective.MemberOf(rank), bucket);
  Submission submission{.spec = collective.spec,
                        .sequence = workload_.SequenceOf(call),
                        .leaves = {},
                        .drain = workload_.IsDrain(collective, call),
                        .token = records_.size()};
  std::size_t offset = 0;
  for (const std::uint64_t elements : collective.leaf_elements) {
    const std::size_t bytes = elements * SizeOf(collective.spec.element_type);
    std::vector<std::byte> leaf(bytes + 2 * kMarginBytes, kMarginValue);
    std::copy_n(bucket.begin() + static_cast<std::ptrdiff_t>(offset), bytes,
                leaf.begin() + kMarginBytes);
    offset += bytes;
    record.leaves.push_back(std::move(leaf));
    submission.leaves.push_back({record.leaves.back().data() + kMarginBytes, elements});
  }
  leaf_bytes_ += bucket.size();
  ReleaseLeaves(now);
  // The endpoint holds pointers into the leaves, which moving a record must not change.
  static_assert(std::is_nothrow_move_constructible_v<Record>);
  records_.push_back(std::move(record));
  return submission;
}

void Checker::CheckUntouched(Instant now, const Record& record) {
  if (HashOfLeaves(record) == record.hash && MarginsIntact(record)) return;
  Fail(now, record.rank,
       "a leaf was written after its call had ended: call " + std::to_string(record.call.index) +
           " of '" + record.collective.spec.description + "'");
}

void Checker::ReleaseLeaves(Instant now) {
  while (leaf_bytes_ > kLeafBytesMax && released_ < records_.size() && records_[released_].done) {
    Record& oldest = records_[released_++];
    CheckUntouched(now, oldest);
    leaf_bytes_ -= oldest.collective.bytes();
    oldest.leaves = {};
    // A later user computes it again.
    std::erase_if(references_, [&](const auto& reference) {
      return reference.first.second < oldest.call.index;
    });
  }
}

void Checker::Submitted(Instant now, std::uint64_t token, const Status& status) {
  Record& record = records_[token];
  if (status.ok()) {
    record.submitted = true;
    std::size_t& next = next_index_[{record.call.collective, record.rank.index()}];
    for (; next <= record.call.index; ++next) {
      Ready& ready = ready_[{record.call.collective, next}];
      ++ready.members;
      ready.at = now;
    }
    return;
  }
  CheckError(now, record, status);
}

std::vector<std::byte> Checker::Gather(const Record& record) const {
  std::vector<std::byte> bucket;
  for (const std::vector<std::byte>& leaf : record.leaves) {
    bucket.insert(bucket.end(), leaf.begin() + kMarginBytes, leaf.end() - kMarginBytes);
  }
  return bucket;
}

std::uint64_t Checker::HashOfLeaves(const Record& record) {
  std::uint64_t hash = 0;
  for (const std::vector<std::byte>& leaf : record.leaves) {
    const auto inner = std::span(leaf).subspan(kMarginBytes, leaf.size() - 2 * kMarginBytes);
    hash = Mix(hash ^ HashOf(inner));
  }
  return hash;
}

bool Checker::MarginsIntact(const Record& record) const {
  const auto intact = [](std::byte byte) { return byte == kMarginValue; };
  return std::ranges::all_of(record.leaves, [&](const std::vector<std::byte>& leaf) {
    return std::all_of(leaf.begin(), leaf.begin() + kMarginBytes, intact) &&
           std::all_of(leaf.end() - kMarginBytes, leaf.end(), intact);
  });
}

void Checker::PartDone(Instant now, Rank rank, std::uint16_t lane, std::uint64_t token,
                       const CallDone& part) {
  if (token >= records_.size() || records_[token].rank != rank) {
    return Fail(now, rank, "a call ended that it never made");
  }
  Record& record = records_[token];
  SeenLane& seen = seen_[rank.index()].lanes[lane];
  ++(part.status.ok() ? seen.completed : seen.failed);
  if (!part.status.ok()) return;
  record.owed[lane] = part.stats.missing_results == 1 && part.stats.in_flight == 1;
  const std::uint16_t live = part.stats.live;
  if (const std::uint16_t others = record.parts_live.value_or(live); others != live) {
    return Fail(now, rank,
                "the part on lane " + std::to_string(lane) + " of call " +
                    std::to_string(record.call.index) + " of '" +
                    record.collective.spec.description + "' has " + std::to_string(live) +
                    " live members, another part " + std::to_string(others));
  }
  record.parts_live = live;
}

void Checker::Done(Instant now, Rank rank, const CallDone& done) {
  if (done.token >= records_.size() || records_[done.token].rank != rank) {
    return Fail(now, rank, "a call ended that it never made");
  }
  Record& record = records_[done.token];
  if (record.done || !record.submitted) {
    return Fail(now, rank, "a call ended twice, or after it was refused");
  }
  record.done = true;
  record.done_at = now;
  if (!MarginsIntact(record)) return Fail(now, rank, "bytes beside a leaf were written");
  record.hash = HashOfLeaves(record);
  CheckTime(now, record, done);
  if (done.status.code() == StatusCode::kCancelled) {
    given_up_.emplace(record.call.collective, record.call.index);
  }
  if (!done.status.ok()) return CheckError(now, record, done.status);
  record.live = done.stats.live;
  record.whole = done.stats.missing_contributions == 0 && done.stats.missing_results == 0;
  CheckResult(now, record, done);
}

void Checker::CheckResult(Instant now, const Record& record, const CallDone& done) {
  const std::vector<std::byte> bucket = Gather(record);
  std::string wrong;
  if (record.collective.lossy()) {
    // Rounded values do not tell which contributions are in them.
    wrong = Rounds(record.collective.spec)
                ? CheckRoundedLossyResult(workload_, record.collective, record.call, bucket,
                                          Reference(record.call), done.stats)
                : CheckLossyResult(workload_, record.collective, record.call, bucket, done.stats);
  } else if (record.collective.defers()) {
    wrong = CheckDeferred(record, bucket, done);
  } else if (Rounds(record.collective.spec)) {
    wrong = CheckRounded(record, bucket, done);
  } else {
    wrong = CheckExactResult(record.collective, bucket, Reference(record.call), done.stats);
  }
  if (!wrong.empty()) {
    Fail(now, record.rank,
         "the result of call " + std::to_string(record.call.index) + " of '" +
             record.collective.spec.description + "' " + wrong);
  }
  if (!record.collective.HasMember(done.stats.slowest)) {
    Fail(now, record.rank, "the slowest rank of a call is not one of its members");
  }
}

const std::vector<std::byte>& Checker::Reference(SimCall call) {
  std::vector<std::byte>& reference = references_[{call.collective, call.index}];
  if (reference.empty()) {
    reference = workload_.Reference(workload_.collectives()[call.collective], call);
  }
  return reference;
}

std::string Checker::CheckDeferred(const Record& record, std::span<const std::byte> bucket,
                                   const CallDone& done) {
  const ElementType type = record.collective.spec.element_type;
  std::vector<double>& total = totals_[{record.call.collective, record.rank.index()}];
  total.resize(record.collective.spec.elements);
  for (std::size_t i = 0; i < total.size(); ++i) {
    total[i] += LoadElement(type, &bucket[i * SizeOf(type)]);
  }
  const CallStats& stats = done.stats;
  if (workload_.IsDrain(record.collective, record.call)) {
    const bool whole = stats.missing_contributions == 0 && stats.missing_results == 0;
    // One may have been removed while the others waited for it.
    if (!whole && scenario_.removals_max() == 0) {
      return "is that of a drain, but its stats say that something is missing";
    }
    if (scenario_.only_gives_up()) return CheckNotTwice(record);
    return scenario_.loses_data() ? "" : CheckConserved(record);
  }
  const bool whole = stats.missing_contributions == 0 && stats.missing_results == 0 &&
                     stats.deferred == 0 && stats.live == record.collective.spec.members.size();
  // With errors of calls before in it.
  if (!whole || Rounds(record.collective.spec)) return {};
  return CheckExactResult(record.collective, bucket, Reference(record.call), stats);
}

std::string Checker::CheckRounded(const Record& record, std::span<const std::byte> bucket,
                                  const CallDone& done) {
  const SimCollective& collective = record.collective;
  if (done.stats.missing_contributions != 0 || done.stats.missing_results != 0) {
    return "is whole, but its stats report that something is missing";
  }
  std::vector<std::byte>& first = rounded_[{record.call.collective, record.call.index}];
  if (first.empty()) first.assign(bucket.begin(), bucket.end());
  if (!std::ranges::equal(first, bucket)) return "has other bits than elsewhere";
  const double error_max = RoundingErrorMax(workload_, collective, record.call);
  const std::vector<std::byte>& reference = Reference(record.call);
  for (std::size_t i = 0; i < collective.spec.elements; ++i) {
    const double got = LoadElement(ElementType::kFloat32, &bucket[i * sizeof(float)]);
    const double sum = LoadElement(ElementType::kFloat32, &reference[i * sizeof(float)]);
    if (std::fabs(got - sum) <= error_max) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(got) + ", farther from " +
           std::to_string(sum) + " than rounding explains";
  }
  return {};
}

std::string Checker::CheckConserved(const Record& record) {
  const std::vector<double>& got = totals_[{record.call.collective, record.rank.index()}];
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (workload_.ShowsAllOnce(record.collective, i, got[i])) continue;
    return "drains the collective, but " + Describe(record.collective, i, got[i]);
  }
  return {};
}

std::string Checker::CheckNotTwice(const Record& record) {
  // Rounding errors make the digits of calls mix.
  if (Rounds(record.collective.spec)) return {};
  const std::vector<double>& got = totals_[{record.call.collective, record.rank.index()}];
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto shown = workload_.ShownBy(record.collective, i, got[i]);
    const bool twice =
        shown.empty() || std::ranges::any_of(shown, [](auto& each) { return each.times > 1; });
    if (twice) return "drains the collective, but " + Describe(record.collective, i, got[i]);
  }
  return {};
}

std::string Checker::Describe(const SimCollective& collective, std::size_t element,
                              double total) const {
  std::string text =
      "element " + std::to_string(element) + " of all calls adds up to " + std::to_string(total);
  const auto shown = workload_.ShownBy(collective, element, total);
  if (shown.empty()) return text + ", which no contributions give";
  for (const Workload::Shown& each : shown) {
    if (each.times == 1) continue;
    text += ", " + std::to_string(each.times) + " times that of rank " +
            std::to_string(collective.spec.members[each.member].value()) + " to call " +
            std::to_string(each.index);
  }
  return text;
}

void Checker::CheckTime(Instant now, const Record& record, const CallDone& done) {
  const Duration took = now - record.submitted_at;
  if (done.stats.elapsed > took || done.stats.elapsed + DriverSlack() < took) {
    Fail(now, record.rank,
         "a call took " + Milliseconds(took) + ", but its stats say " +
             Milliseconds(done.stats.elapsed));
  }
  // A rank that stands still ends nothing.
  const Duration still = scenario_.freeze_at_us > 0 && record.rank.value() == scenario_.freeze_rank
                             ? microseconds(scenario_.freeze_for_us)
                             : Duration{};
  if (record.collective.lossy()) {
    const CollectiveSpec& spec = record.collective.spec;
    const Duration bound =
        spec.reduce_scatter_deadline + spec.all_gather_deadline + DriverSlack() + still;
    if (took > bound) {
      Fail(now, record.rank,
           "a lossy call took " + Milliseconds(took) + "; its deadline is " + Milliseconds(bound));
    }
    return;
  }
  if (scenario_.call_timeout_us > 0 && MayWaitForEver(record)) {
    const Duration bound = microseconds(scenario_.call_timeout_us) + DriverSlack() + still;
    if (took > bound) {
      Fail(now, record.rank,
           "a call took " + Milliseconds(took) + "; its limit is " + Milliseconds(bound));
    }
  }
  if (!done.status.ok()) return;
  const CollectiveSpec& spec = record.collective.spec;
  if (OutlivesMembers(spec) && !workload_.IsDrain(record.collective, record.call)) {
    // Without suspension it may wait for peers that are behind.
    const Duration lag = microseconds(scenario_.suspend != 0 ? 0 : scenario_.peer_timeout_us);
    const Duration bound = spec.reduce_scatter_deadline + spec.all_gather_deadline + lag +
                           DriverSlack() + still + AgreementBound();
    if (took > bound) {
      Fail(now, record.rank,
           "a bounded call took " + Milliseconds(took) + "; its bound is " + Milliseconds(bound));
    }
    CheckLag(now, record);
  }
  const Instant from =
      std::max({WaitsFrom(now, record), Instant{} + microseconds(scenario_.faults_end_us),
                Instant{} + microseconds(scenario_.cut_at_us + scenario_.cut_for_us),
                Instant{} + microseconds(scenario_.freeze_at_us + scenario_.freeze_for_us),
                Instant{} + microseconds(scenario_.part_at_us + scenario_.part_for_us),
                Instant{} + microseconds(scenario_.lane_cut_at_us + scenario_.lane_cut_for_us),
                Instant{} + microseconds(std::max(scenario_.stop_at_us, scenario_.leave_at_us)),
                PathGivenUpBy(),
                Instant{} + microseconds(scenario_.rival_at_us > 0
                                             ? scenario_.rival_at_us + scenario_.rival_for_us
                                             : 0)});
  liveness_worst_ = std::max(liveness_worst_, now - from);
  if (now > from + LivenessBound() + SilenceBound()) {
    Fail(now, record.rank,
         "a call ended " + Milliseconds(now - from) +
             " after it had to wait for the network only, and faults had ended; the bound is " +
             Milliseconds(LivenessBound()));
  }
}

// ---------------------------------------------------------------------------------- events

void Checker::Stopped(Instant now, Rank rank) { seen_[rank.index()].stopped_at = now; }
void Checker::Left(Instant now, Rank rank) { seen_[rank.index()].left_at = now; }
void Checker::Cancelled(Instant now, Rank rank) { seen_[rank.index()].cancelled_at = now; }
void Checker::GaveUp(Instant now, Rank rank, SimCall call) {
  Cancelled(now, rank);
  given_up_.emplace(call.collective, call.index);
}

void Checker::Delivered(Instant now, const Arrival& delivery, const Counters& counters) {
  SeenLane& seen = SeenBy(delivery.to);
  const std::size_t from = delivery.from.index() % scenario_.ranks;
  ++seen.delivered;
  // These are looked at after the tag.
  const std::uint64_t heard_count =
      counters.datagrams_received + counters.rejected_early + counters.rejected_mismatched;
  if (heard_count == std::exchange(seen.heard_count, heard_count)) return;
  Instant& heard = seen.heard[from];
  if (IsSilentSince(now, heard)) seen_[from].silent_until = now;
  const Instant asked = std::exchange(seen.asked[from], kNever);
  if (asked < now && heard > Instant{}) NoteAnswer(seen, now - asked);
  heard = now;
  seen.first_heard[from] = std::min(seen.first_heard[from], now);
}

void Checker::Polled(Instant now, Rank node, const Transmit& transmit, std::size_t batch_max) {
  SeenLane& seen = SeenBy(node);
  const Rank rank = RankOf(scenario_, node);
  if (transmit.to == rank || transmit.to.index() >= seen_.size() || transmit.bytes == 0 ||
      transmit.bytes != SizeOf(transmit.pieces) || transmit.datagram_bytes == 0 ||
      transmit.datagram_bytes > scenario_.datagram_bytes) {
    return Fail(now, rank, "a transmit goes nowhere, is empty, or has too large datagrams");
  }
  const std::size_t datagrams =
      (transmit.bytes + transmit.datagram_bytes - 1) / transmit.datagram_bytes;
  if (datagrams > batch_max) Fail(now, rank, "a transmit has more datagrams than asked for");
  Instant& asked = seen.asked[transmit.to.index()];
  asked = std::min(asked, now);
  seen.sent += datagrams;
  seen.sent_bytes += transmit.bytes;
}

void Checker::Driven(Instant now, Rank node, const Endpoint& endpoint) {
  const SeenLane& seen = SeenBy(node);
  const Rank rank = RankOf(scenario_, node);
  const Counters& c = endpoint.counters();
  const std::uint64_t taken = c.datagrams_received + c.rejected_malformed + c.rejected_oversized +
                              c.rejected_version + c.rejected_foreign + c.rejected_unauthenticated +
                              c.rejected_replayed + c.rejected_removed + c.rejected_early +
                              c.rejected_mismatched;
  if (taken != seen.delivered) {
    Fail(now, rank,
         "received + rejected is " + std::to_string(taken) + ", but it was given " +
             std::to_string(seen.delivered) + " datagrams");
  }
  if (c.datagrams_sent != seen.sent || c.bytes_sent != seen.sent_bytes) {
    Fail(now, rank,
         "it counts " + std::to_string(c.datagrams_sent) + " datagrams sent, but sent " +
             std::to_string(seen.sent));
  }
  if (c.calls_completed != seen.completed || c.calls_failed != seen.failed) {
    Fail(now, rank, "its counters of calls differ from the calls that ended");
  }
  if (scenario_.removable() != 0) NoteView(now, rank, endpoint.live());
  if (endpoint.memory_bytes() > memory_bound_[rank.index()]) {
    Fail(now, rank,
         "it holds " + std::to_string(endpoint.memory_bytes()) + " bytes; the bound is " +
             std::to_string(memory_bound_[rank.index()]));
  }
}

void Checker::CheckEfficiency(Instant now, const Network& network) {
  const FaultCounters& faults = network.faults();
#define OPTIREDUCE_ADD_FAULT(name, meaning) +faults.name
  const std::uint64_t all = 0 OPTIREDUCE_FAULTS(OPTIREDUCE_ADD_FAULT);
#undef OPTIREDUCE_ADD_FAULT
  if (all != 0 || scenario_.has_failure() || scenario_.lanes > 1) return;
  // Those that come early may be refused, and are then sent again.
  const Scenario& s = scenario_;
  if (s.start_skew_us + s.think_us + s.straggle_ppm + s.late_us + s.skip_ppm > 0) return;
  if (scenario_.early_bytes_max < Scenario().early_bytes_max) return;
  const double datagram_us = static_cast<double>(scenario_.datagram_bytes * 8) *
                             static_cast<double>(scenario_.slow_factor) /
                             static_cast<double>(scenario_.rate_mbps);
  const bool slow = datagram_us * kAcknowledgedTogether > kAcknowledgeDelayUs;
  double data = 0;
  std::uint64_t control = 0;
  for (const SimCollective& collective : workload_.collectives()) {
    const auto members = static_cast<std::uint64_t>(collective.spec.members.size());
    const std::uint64_t payload = (scenario_.datagram_bytes - kOverheadBytes) / 8 * 8;
    const std::uint64_t shard = collective.bytes() / members + 8;
    const std::uint64_t segments = members * (shard / payload + 1);
    const std::uint64_t once = collective.bytes() + segments * kOverheadBytes;
    const std::uint64_t calls = scenario_.calls + (collective.defers() ? 1 : 0);
    data += static_cast<double>(2 * (members - 1) * once * calls);
    control += members * (members - 1) *
               (kAnnouncementBytesMax + calls * kControlDatagramsPerCall * kControlBytesMax);
    // On a slow link every datagram is acknowledged by itself.
    if (slow) control += 2 * (members - 1) * segments * calls * kAcknowledgementBytes;
  }
  std::uint64_t sent = 0;
  for (const Seen& seen : seen_) sent += seen.lanes.front().sent_bytes;
  if (static_cast<double>(sent) > data * kWireExcessMax + static_cast<double>(control)) {
    Fail(now, Rank(0),
         "a clean run sent " + std::to_string(sent) + " bytes; data and headers are " +
             std::to_string(data) + ", control is at most " + std::to_string(control));
  }
}

void Checker::FailOpenCalls(Instant now) {
  for (const Record& record : records_) {
    if (seen_[record.rank.index()].stopped_at || !record.submitted || record.done) continue;
    Fail(now, record.rank,
         "call " + std::to_string(record.call.index) + " of '" +
             record.collective.spec.description + "' never ended; it was made at " +
             Milliseconds(record.submitted_at - Instant{}));
  }
}

void Checker::Finish(Instant now, const Network& network) {
  FailOpenCalls(now);
  for (std::size_t i = released_; i < records_.size(); ++i) {
    const Record& record = records_[i];
    if (!seen_[record.rank.index()].stopped_at && record.done) CheckUntouched(now, record);
  }
  CheckEfficiency(now, network);
  CheckRemovals(now);
}

}  // namespace optireduce
