#include "ffi/sim/result_checker.h"

#include <algorithm>
#include <cmath>

#include "ffi/sim/call_values.h"
#include "ffi/sim/hash.h"

namespace optireduce {

void ResultChecker::Check(Instant now, const SimCallRecord& record,
                          std::span<const std::byte> bucket, const CallStats& stats) {
  const std::string wrong = FindWrong(record, bucket, stats);
  if (!wrong.empty()) log_.Fail(now, record.rank, "the result of " + record.Name() + " " + wrong);
  if (!record.collective.HasMember(stats.slowest)) {
    log_.Fail(now, record.rank, "the slowest rank of a call is not one of its members");
  }
}

std::string ResultChecker::FindWrong(const SimCallRecord& record, std::span<const std::byte> bucket,
                                     const CallStats& stats) {
  const SimCollective& collective = record.collective;
  const bool rounds = Rounds(collective.spec);
  if (collective.defers()) return CheckDeferred(record, bucket, stats);
  if (!collective.lossy()) {
    return rounds ? CheckRounded(record, bucket, stats)
                  : CheckExactResult(collective, record.Result(), bucket, Reference(record.call),
                                     stats);
  }
  if (!HasReduceScatter(collective.spec) && !rounds) {
    return CheckGatheredResult(collective, bucket, Reference(record.call), stats);
  }
  // Rounded values do not tell which contributions are in them.
  return rounds ? CheckRoundedLossyResult(log_.workload, collective, record.call, record.Result(),
                                          bucket, Reference(record.call), stats)
                : CheckLossyResult(log_.workload, collective, record.call, record.Result(), bucket,
                                   stats);
}

const std::vector<std::byte>& ResultChecker::Reference(SimCall call) {
  std::vector<std::byte>& reference = references_[{call.collective, call.index}];
  if (reference.empty()) {
    // A later user of a dropped one computes it again.
    std::erase_if(references_, [&](const auto& each) {
      return each.first.second < std::min(log_.kept_from, call.index);
    });
    reference = log_.workload.Reference(log_.workload.collectives()[call.collective], call);
  }
  return reference;
}

const std::vector<double>& ResultChecker::TotalOf(std::size_t collective, Rank rank) const {
  static const std::vector<double> kNone;
  const auto total = totals_.find({collective, rank.index()});
  return total == totals_.end() ? kNone : total->second;
}

std::string ResultChecker::CheckDeferred(const SimCallRecord& record,
                                         std::span<const std::byte> bucket,
                                         const CallStats& stats) {
  const ElementType type = record.collective.spec.element_type;
  std::vector<double>& total = totals_[{record.call.collective, record.rank.index()}];
  total.resize(record.collective.spec.elements);
  const ElementRange result = record.Result();
  for (std::size_t i = result.first; i < result.end; ++i) {
    total[i] += LoadElement(type, &bucket[i * SizeOf(type)]);
  }
  if (record.drain) return CheckDrain(record, stats);
  const bool whole =
      IsWhole(stats) && stats.deferred == 0 && stats.live == record.collective.spec.members.size();
  // The result holds errors of earlier calls.
  if (!whole || Rounds(record.collective.spec)) return {};
  if (log_.scenario.catches_up() && OutlivesMembers(record.collective.spec)) {
    return CheckSame(record, bucket, stats);
  }
  return CheckExactResult(record.collective, result, bucket, Reference(record.call), stats);
}

std::string ResultChecker::CheckSame(const SimCallRecord& record, std::span<const std::byte> bucket,
                                     const CallStats& stats) {
  // The parts of a bucket on several lanes may be of different calls.
  if (log_.scenario.lanes > 1) return {};
  const std::uint64_t hash = HashOf(bucket);
  const auto first = whole_.try_emplace({record.call.collective, stats.number}, hash).first;
  if (first->second == hash) return {};
  return "is whole as call " + std::to_string(stats.number.value()) +
         ", but other ranks have another result";
}

std::string ResultChecker::CheckDrain(const SimCallRecord& record, const CallStats& stats) const {
  // One may have been removed while the others waited for it.
  if (!IsWhole(stats) && log_.scenario.removals_max() == 0) {
    return "is that of a drain, but its stats say that something is missing";
  }
  if (log_.scenario.represents_absent() && OutlivesMembers(record.collective.spec)) {
    return log_.scenario.give_up_at_us > 0 ? "" : CheckRepresented(record);
  }
  if (log_.scenario.only_gives_up()) return CheckNotTwice(record);
  return log_.scenario.loses_data() ? "" : CheckConserved(record);
}

std::string ResultChecker::CheckRounded(const SimCallRecord& record,
                                        std::span<const std::byte> bucket, const CallStats& stats) {
  const SimCollective& collective = record.collective;
  if (!IsWhole(stats)) {
    return "is whole, but its stats report that something is missing";
  }
  // A scattered sum is on one rank alone.
  if (HasAllGather(collective.spec)) {
    std::vector<std::byte>& first = rounded_[{record.call.collective, record.call.index}];
    if (first.empty()) first.assign(bucket.begin(), bucket.end());
    if (!std::ranges::equal(first, bucket)) return "has other bits than elsewhere";
  }
  const double error_max = RoundingErrorMax(log_.workload, collective, record.call);
  const std::vector<std::byte>& reference = Reference(record.call);
  for (std::size_t i = record.Result().first; i < record.Result().end; ++i) {
    const double got = LoadElement(ElementType::kFloat32, &bucket[i * sizeof(float)]);
    const double sum = LoadElement(ElementType::kFloat32, &reference[i * sizeof(float)]);
    if (std::fabs(got - sum) <= error_max) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(got) + ", farther from " +
           std::to_string(sum) + " than rounding explains";
  }
  return {};
}

std::string ResultChecker::CheckConserved(const SimCallRecord& record) const {
  const std::vector<double>& got = TotalOf(record.call.collective, record.rank);
  for (std::size_t i = record.Result().first; i < record.Result().end; ++i) {
    if (log_.workload.HoldsAllOnce(record.collective, i, got[i])) continue;
    return "drains the collective, but " + Describe(record.collective, i, got[i]);
  }
  return {};
}

std::string ResultChecker::CheckRepresented(const SimCallRecord& record) const {
  const ElementType type = record.collective.spec.element_type;
  // Every call may round the total. A rounded value and its error may count differently.
  const CollectiveSpec& spec = record.collective.spec;
  const double tolerance = static_cast<double>(log_.scenario.calls + 1) * RoundingOf(type) +
                           (Rounds(spec) ? kRoundingSteps * StepMax(spec.wire_format) : 0);
  const std::vector<double>& got = TotalOf(record.call.collective, record.rank);
  for (std::size_t i = record.Result().first; i < record.Result().end; ++i) {
    const double once = log_.workload.AllOnce(record.collective, i);
    const double parts = once == 0 ? 1 : got[i] / once;
    if (parts >= 1 - tolerance && parts <= 2 + tolerance) continue;
    return "drains the collective, but " + Describe(record.collective, i, got[i]) + ", " +
           std::to_string(parts) + " times the contributions";
  }
  return {};
}

std::string ResultChecker::CheckNotTwice(const SimCallRecord& record) const {
  // Rounding errors make the digits of calls mix.
  if (Rounds(record.collective.spec)) return {};
  const std::vector<double>& got = TotalOf(record.call.collective, record.rank);
  for (std::size_t i = record.Result().first; i < record.Result().end; ++i) {
    const auto decoded = log_.workload.DecodeTotal(record.collective, i, got[i]);
    const bool twice =
        decoded.empty() || std::ranges::any_of(decoded, [](auto& each) { return each.times > 1; });
    if (twice) return "drains the collective, but " + Describe(record.collective, i, got[i]);
  }
  return {};
}

std::string ResultChecker::Describe(const SimCollective& collective, std::size_t element,
                                    double total) const {
  std::string text =
      "element " + std::to_string(element) + " of all calls adds up to " + std::to_string(total);
  const auto decoded = log_.workload.DecodeTotal(collective, element, total);
  if (decoded.empty()) return text + ", which no contributions give";
  for (const Workload::Decoded& each : decoded) {
    if (each.times == 1) continue;
    text += ", " + std::to_string(each.times) + " times that of rank " +
            std::to_string(collective.spec.members[each.member].value()) + " to call " +
            std::to_string(each.index);
  }
  return text;
}

}  // namespace optireduce
