#include "ffi/runtime/called_collectives.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "ffi/base/quoted.h"
#include "ffi/codec/wire_format.h"
#include "ffi/protocol/collective/policy_traits.h"

namespace optireduce {
namespace {

// Collectives retained for drains. Beyond this number drains are not checked.
// Chosen: as many as a process may name.
constexpr std::size_t kRecordedMax = 1 << 16;

// Least similarity of a suggested name, from 0 to 1, and the number of suggestions.
// Chosen: a typing error is above, another word is below.
constexpr double kAlikeMin = 0.5;
constexpr std::size_t kNearestMax = 3;

// Levenshtein's distance.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

double Likeness(std::string_view a, std::string_view b) {
  const std::size_t longest = std::max({a.size(), b.size(), std::size_t{1}});
  return 1.0 - static_cast<double>(EditDistance(a, b)) / static_cast<double>(longest);
}

// The correction for a drain whose key matches a call and whose other properties do not.
std::string Advice(const CollectiveSpec& drain, const CollectiveSpec& called) {
  if (!RetainsLateData(called)) return "its data is never in flight, so it needs no drain.";
  if (HasAllGather(drain) != HasAllGather(called)) {
    return HasAllGather(called) ? "leave scatter_dimension= out of the drain."
                                : "write scatter_dimension= and tiled= of the call in the drain.";
  }
  std::string arguments;
  if (ModeOf(drain) != ModeOf(called)) arguments += "mode=" + Quoted(ModeOf(called));
  if (drain.wire_format != called.wire_format) {
    if (!arguments.empty()) arguments += " and ";
    arguments += "wire_format=" + Quoted(NameOf(called.wire_format));
  }
  if (!arguments.empty()) return "write " + arguments + " in the drain.";
  if (drain.description == called.description) {
    return "the drain is over another axis or mesh.";
  }
  return "give the drain a tree of the same shapes and dtypes.";
}

std::size_t Differences(const CollectiveSpec& drain, const CollectiveSpec& called) {
  std::size_t differences = RetainsLateData(called) ? 0 : 3;
  if (HasAllGather(drain) != HasAllGather(called)) ++differences;
  if (ModeOf(drain) != ModeOf(called)) ++differences;
  if (drain.wire_format != called.wire_format) ++differences;
  return differences;
}

}  // namespace

void CalledCollectives::Record(const std::string& key, const CollectiveSpec& spec) {
  defers_ = defers_ || RetainsLateData(spec);
  std::vector<CollectiveSpec>& called = calls_[key];
  if (std::ranges::find(called, spec.fingerprint, &CollectiveSpec::fingerprint) != called.end()) {
    return;
  }
  if (noted_ >= kRecordedMax) return;
  ++noted_;
  called.push_back(spec);
}

Status CalledCollectives::Check(const std::string& key, const CollectiveSpec& drain,
                                bool if_any) const {
  if (!defers_ || noted_ >= kRecordedMax) return Status();
  const auto at = calls_.find(key);
  const bool called = at != calls_.end();
  if (!called && (if_any || !RetainsLateData(drain))) return Status();
  const std::string fits_none = "drain of " + drain.description +
                                " matches no call that this process has made, and would return "
                                "nothing. ";
  if (called) {
    const std::vector<CollectiveSpec>& specs = at->second;
    const bool fits = RetainsLateData(drain)
                          ? std::ranges::find(specs, drain.fingerprint,
                                              &CollectiveSpec::fingerprint) != specs.end()
                          : std::ranges::none_of(specs, RetainsLateData);
    if (fits) return Status();
    const CollectiveSpec& nearest = *std::ranges::min_element(
        specs, {}, [&](const CollectiveSpec& spec) { return Differences(drain, spec); });
    return InvalidArgument(fits_none + "It has called " + nearest.description + ": " +
                           Advice(drain, nearest));
  }
  return InvalidArgument(
      fits_none + "Nearest to it are the calls of " + Nearest(key) +
      ". Give the drain the name=, mode=, wire_format= and axis of its call, and a "
      "tree of the same shapes and dtypes; make none before the first call.");
}

std::string CalledCollectives::Nearest(const std::string& key) const {
  std::vector<std::pair<double, const CollectiveSpec*>> alike;
  for (const auto& [name, specs] : calls_) {
    const auto defers = std::ranges::find_if(specs, RetainsLateData);
    if (defers != specs.end()) alike.emplace_back(Likeness(key, name), &*defers);
  }
  std::ranges::stable_sort(alike, std::ranges::greater(), [](const auto& at) { return at.first; });
  std::string list;
  for (std::size_t i = 0; i < std::min(alike.size(), kNearestMax); ++i) {
    if (alike[i].first < kAlikeMin && alike.front().first >= kAlikeMin) break;
    list += (i == 0 ? "" : ", ") + alike[i].second->description;
  }
  return list;
}

}  // namespace optireduce
