// Ranks and calls as plain numbers.

#ifndef TESTS_NATIVE_MEMBERSHIP_VALUES_H_
#define TESTS_NATIVE_MEMBERSHIP_VALUES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/protocol/wire/membership_message.h"

namespace optireduce::testing {

// The collective and sequence of a call, or the round and coordinator of a ballot.
using Pair = std::pair<std::uint32_t, std::uint32_t>;

inline Ballot ToBallot(Pair ballot) {
  return {.round = ballot.first, .coordinator = Rank(static_cast<std::uint16_t>(ballot.second))};
}
inline Pair ToPair(const Ballot& ballot) { return {ballot.round, ballot.coordinator.value()}; }

inline std::vector<int> ToInts(const std::vector<Rank>& ranks) {
  std::vector<int> values;
  for (const Rank rank : ranks) values.push_back(rank.value());
  return values;
}

inline std::vector<Rank> RanksOf(const std::vector<std::uint16_t>& values) {
  return {values.begin(), values.end()};
}

inline std::vector<CallId> CallsOf(const std::vector<Pair>& pairs) {
  std::vector<CallId> calls;
  for (const auto& [collective, sequence] : pairs) {
    calls.push_back({.collective = CollectiveId(collective), .sequence = Sequence(sequence)});
  }
  return calls;
}

inline std::vector<Pair> ToPairs(const std::vector<CallId>& calls) {
  std::vector<Pair> pairs;
  for (const CallId call : calls) {
    pairs.emplace_back(call.collective.value(), call.sequence.value());
  }
  return pairs;
}

}  // namespace optireduce::testing

#endif  // TESTS_NATIVE_MEMBERSHIP_VALUES_H_
