#include "ffi/fuzz/reach.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace optireduce {
namespace {

// Chosen: many times the number of effects that the targets distinguish.
constexpr std::size_t kPlaces = 1 << 16;

// Source: libFuzzer's FuzzerExtraCounters.cpp, which looks for a section of this name.
__attribute__((section("__libfuzzer_extra_counters"))) std::array<std::uint8_t, kPlaces> reached;
bool reached_more = false;

}  // namespace

void Reach(std::uint32_t what, std::uint64_t count) {
  // Chosen: 64 orders of magnitude for each effect.
  const auto magnitude = std::min(static_cast<unsigned>(std::bit_width(count)), 63u);
  std::uint8_t& place = reached[(what * 64 + magnitude) % kPlaces];
  if (place == 0) reached_more = true;
  place = 1;
}

bool TakeNews() {
  const bool was = reached_more;
  reached_more = false;
  return was;
}

}  // namespace optireduce
