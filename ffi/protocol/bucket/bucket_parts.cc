#include "ffi/protocol/bucket/bucket_parts.h"

#include <algorithm>

#include "ffi/base/check.h"
#include "ffi/base/prng.h"

namespace optireduce {
namespace {

// Not std::hash: ranks must agree, whatever they were built with.
std::size_t LaneOf(std::string_view name, std::size_t lanes) {
  std::uint64_t hash = 0;
  for (const char character : name) hash = Mix(hash + static_cast<unsigned char>(character) + 1);
  return static_cast<std::size_t>(hash % lanes);
}

// The leaves that hold elements [begin, end) of the bucket, cut at both ends.
std::vector<Leaf> LeavesOfRange(const Submission& submission, std::uint64_t begin,
                                std::uint64_t end) {
  const std::size_t element_bytes = SizeOf(submission.spec.element_type);
  std::vector<Leaf> leaves;
  std::uint64_t position = 0;
  for (const Leaf& leaf : submission.leaves) {
    const std::uint64_t from = std::max(begin, position);
    const std::uint64_t to = std::min(end, position + leaf.elements);
    if (from < to) {
      const auto offset_bytes = static_cast<std::size_t>(from - position) * element_bytes;
      leaves.push_back({.data = leaf.data + offset_bytes,
                        .elements = to - from,
                        .from = leaf.from != nullptr ? leaf.from + offset_bytes : nullptr});
    }
    position += leaf.elements;
  }
  return leaves;
}

}  // namespace

std::vector<BucketPart> CutBucket(const Submission& submission, std::size_t lanes,
                                  std::size_t cut_bytes_min) {
  OR_CHECK(lanes > 0);
  const CollectiveSpec& spec = submission.spec;
  const std::uint64_t bytes = spec.elements * SizeOf(spec.element_type);
  std::vector<BucketPart> parts;
  if (lanes == 1 || bytes < cut_bytes_min) {
    parts.push_back({.lane = LaneOf(spec.name, lanes), .submission = submission});
    return parts;
  }
  OR_CHECK(HasWholeShards(spec));
  const std::uint64_t pieces = HasBothStages(spec) ? 1 : spec.members.size();
  const std::uint64_t piece = spec.elements / pieces;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::uint64_t begin = piece * lane / lanes;
    const std::uint64_t end = piece * (lane + 1) / lanes;
    Submission part{.spec = spec,
                    .sequence = submission.sequence,
                    .leaves = {},
                    .drain = submission.drain,
                    .averages = submission.averages,
                    .quorum = submission.quorum,
                    .record = submission.record};
    for (std::uint64_t first = 0; first < spec.elements; first += piece) {
      for (const Leaf& leaf : LeavesOfRange(submission, first + begin, first + end)) {
        part.leaves.push_back(leaf);
      }
    }
    part.spec.elements = pieces * (end - begin);
    parts.push_back({.lane = lane, .submission = std::move(part)});
  }
  return parts;
}

void PartOutcomes::Add(const Status& status, const CallStats& stats, std::uint64_t elements) {
  if (status_.ok()) status_ = status;
  const auto weight = static_cast<double>(elements);
  // The weight of the results that are there.
  const double results = weight * (1 - stats.missing_results);
  results_ += results;
  stats_.missing_contributions += results * stats.missing_contributions;
  stats_.missing_results += weight * stats.missing_results;
  stats_.deferred += weight * stats.deferred;
  stats_.in_flight += weight * stats.in_flight;
  stats_.deadline = std::max(stats_.deadline, stats.deadline);
  stats_.deadline_needed = std::max(stats_.deadline_needed, stats.deadline_needed);
  stats_.retransmitted += stats.retransmitted;
  stats_.late += stats.late;
  stats_.number = std::max(stats_.number, stats.number);
  stats_.skipped = std::max(stats_.skipped, stats.skipped);
  stats_.live = elements_ == 0 ? stats.live : std::min(stats_.live, stats.live);
  if (elements_ == 0 || stats.elapsed > stats_.elapsed) {
    stats_.elapsed = stats.elapsed;
    stats_.slowest = stats.slowest;
    stats_.behind = stats.behind;
    stats_.arrivals = stats.arrivals;
    stats_.absent = stats.absent;
    stats_.passed = stats.passed;
  }
  elements_ += elements;
}

CallStats PartOutcomes::stats() const {
  CallStats stats = stats_;
  if (elements_ > 0) {
    stats.missing_contributions = results_ > 0 ? stats.missing_contributions / results_ : 0;
    stats.missing_results /= static_cast<double>(elements_);
    stats.deferred /= static_cast<double>(elements_);
    stats.in_flight /= static_cast<double>(elements_);
  }
  return stats;
}

}  // namespace optireduce
