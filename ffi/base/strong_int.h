// An integer with a meaning: integers of different meaning cannot be swapped or added by accident.

#ifndef FFI_BASE_STRONG_INT_H_
#define FFI_BASE_STRONG_INT_H_

#include <compare>
#include <cstddef>
#include <functional>

namespace optireduce {

template <typename Tag, typename Representation>
class StrongInt {
 public:
  using Value = Representation;

  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Representation value) : value_(value) {}

  constexpr Representation value() const { return value_; }
  // The index into a vector with one entry for each of these.
  constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }

  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;

 private:
  Representation value_{};
};

}  // namespace optireduce

template <typename Tag, typename Representation>
struct std::hash<optireduce::StrongInt<Tag, Representation>> {
  std::size_t operator()(optireduce::StrongInt<Tag, Representation> id) const noexcept {
    return std::hash<Representation>{}(id.value());
  }
};

#endif  // FFI_BASE_STRONG_INT_H_
