// Ranks and calls as plain numbers.

#ifndef TESTS_NATIVE_MEMBERSHIP_VALUES_H_
#define TESTS_NATIVE_MEMBERSHIP_VALUES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"

namespace optireduce::testing {

// Of a call its collective and sequence, of a ballot its round and coordinator.
using Pair = std::pair<std::uint32_t, std::uint32_t>;

inline std::vector<int> ToInts(const std::vector<Rank>& ranks) {
  std::vector<int> values;
  for (const Rank rank : ranks) values.push_back(rank.value());
  return values;
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
