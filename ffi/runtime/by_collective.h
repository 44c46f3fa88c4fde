// Observations of the calls of each collective, for the detectors of a CallMonitor.

#ifndef FFI_RUNTIME_BY_COLLECTIVE_H_
#define FFI_RUNTIME_BY_COLLECTIVE_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace optireduce {

// Collectives that a detector observes at a time; it ignores further ones.
// Chosen: more than a program has buckets; bounds the memory of a detector to about 0.6 MB.
inline constexpr std::size_t kObservedMax = 1024;

template <typename Value>
class ByCollective {
 public:
  // Null if there are too many collectives.
  Value* FindOrAdd(std::string_view collective) {
    const auto found = values_.find(collective);
    if (found != values_.end()) return &found->second;
    if (values_.size() >= kObservedMax) return nullptr;
    return &values_.emplace(collective, Value{}).first->second;
  }
  void Erase(std::string_view collective) {
    const auto found = values_.find(collective);
    if (found != values_.end()) values_.erase(found);
  }
  template <typename Visit>
  void ForEach(Visit visit) {
    for (auto& [collective, value] : values_) visit(value);
  }
  const std::map<std::string, Value, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, Value, std::less<>> values_;
};

// A mean over calls. From `limit` calls on it is weighted towards later ones.
struct MeanOfCalls {
  std::size_t count = 0;  // number of calls, up to the limit
  double value = 0;

  void Add(double of_call, std::size_t limit) {
    count = std::min(count + 1, limit);
    value += (of_call - value) / static_cast<double>(count);
  }
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_BY_COLLECTIVE_H_
