#include "ffi/sim/leaf_checker.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "ffi/base/prng.h"
#include "ffi/sim/hash.h"

namespace optireduce {
namespace {

// Bytes before and after each leaf that no code may write. Chosen: one cache line.
constexpr std::size_t kMarginBytes = 64;
constexpr std::byte kMarginValue{0xA5};

// Bytes of a leaf before its result, and of values after their call. They are numbers of about 1e38
// (float32), which no sum has.
constexpr std::byte kNoValue{0x7E};

// Leaves of calls that are over are kept, so that writing to them is noticed. Chosen: more than
// small runs have; in others several calls of each rank.
constexpr std::size_t kLeafBytesMax = std::size_t{1} << 27;

std::uint64_t HashOfLeaves(const SimCallRecord& record) {
  std::uint64_t hash = 0;
  for (const std::vector<std::byte>& leaf : record.leaves) {
    const auto inner = std::span(leaf).subspan(kMarginBytes, leaf.size() - 2 * kMarginBytes);
    hash = Mix(hash ^ HashOf(inner));
  }
  return hash;
}

bool MarginsIntact(const SimCallRecord& record) {
  const auto intact = [](std::byte byte) { return byte == kMarginValue; };
  return std::ranges::all_of(record.leaves, [&](const std::vector<std::byte>& leaf) {
    return std::all_of(leaf.begin(), leaf.begin() + kMarginBytes, intact) &&
           std::all_of(leaf.end() - kMarginBytes, leaf.end(), intact);
  });
}

}  // namespace

std::vector<std::byte> LeafChecker::Values(const SimCallRecord& record) const {
  std::vector<std::byte> bucket(record.collective.bytes());
  log_.workload.Fill(record.collective, record.call, record.collective.MemberOf(record.rank),
                     bucket);
  return bucket;
}

std::vector<Leaf> LeafChecker::MakeLeaves(Instant now, SimCallRecord& record) {
  const SimCollective& collective = record.collective;
  std::vector<std::byte> bucket = Values(record);
  // Every other call has its values apart, as a program that keeps an array.
  const bool apart =
      HasBothStages(collective.spec) && (record.call.index + record.rank.index()) % 2 == 1;
  if (apart) record.values = bucket;
  std::vector<Leaf> leaves;
  std::size_t offset = 0;
  for (const std::uint64_t elements : collective.leaf_elements) {
    const std::size_t bytes = elements * SizeOf(collective.spec.element_type);
    std::vector<std::byte> leaf(bytes + 2 * kMarginBytes, kMarginValue);
    const auto values = std::span(bucket).subspan(offset, bytes);
    if (apart) std::ranges::fill(values, kNoValue);
    std::ranges::copy(values, leaf.begin() + kMarginBytes);
    record.leaves.push_back(std::move(leaf));
    leaves.push_back({.data = record.leaves.back().data() + kMarginBytes,
                      .elements = elements,
                      .from = apart ? record.values.data() + offset : nullptr});
    offset += bytes;
  }
  leaf_bytes_ += bucket.size();
  ReleaseLeaves(now);
  return leaves;
}

std::vector<std::byte> LeafChecker::EndCall(Instant now, SimCallRecord& record) {
  if (!MarginsIntact(record)) {
    log_.Fail(now, record.rank, "bytes beside a leaf were written");
    return {};
  }
  if (!record.values.empty() && record.values != Values(record)) {
    log_.Fail(now, record.rank, "a call has written to the values of its rank");
    return {};
  }
  std::ranges::fill(record.values, kNoValue);
  record.hash = HashOfLeaves(record);
  std::vector<std::byte> bucket;
  for (const std::vector<std::byte>& leaf : record.leaves) {
    bucket.insert(bucket.end(), leaf.begin() + kMarginBytes, leaf.end() - kMarginBytes);
  }
  return bucket;
}

void LeafChecker::CheckUntouched(Instant now, const SimCallRecord& record) {
  if (HashOfLeaves(record) == record.hash && MarginsIntact(record)) return;
  log_.Fail(now, record.rank, "a leaf was written after its call had ended: " + record.Name());
}

void LeafChecker::ReleaseLeaves(Instant now) {
  while (leaf_bytes_ > kLeafBytesMax && released_ < log_.calls.size() &&
         log_.calls[released_].done) {
    SimCallRecord& oldest = log_.calls[released_++];
    CheckUntouched(now, oldest);
    leaf_bytes_ -= oldest.collective.bytes();
    oldest.leaves = {};
    oldest.values = {};
    log_.kept_from = oldest.call.index;
  }
}

void LeafChecker::Finish(Instant now) {
  for (std::size_t i = released_; i < log_.calls.size(); ++i) {
    const SimCallRecord& record = log_.calls[i];
    if (!log_.HasStopped(record.rank) && record.done) CheckUntouched(now, record);
  }
}

}  // namespace optireduce
