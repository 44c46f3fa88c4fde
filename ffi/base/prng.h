// The only random numbers of the project, always from a seed. Integers only: the distributions of
// the standard library differ between implementations, and a seed must give the same run
// everywhere.

#ifndef FFI_BASE_PRNG_H_
#define FFI_BASE_PRNG_H_

#include <cstdint>

namespace optireduce {

// SplitMix64's finaliser: a good 64-bit hash of one number.
// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
constexpr std::uint64_t Mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

class Prng {
 public:
  explicit constexpr Prng(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t Next() { return Mix(state_ += 0x9E3779B97F4A7C15ull); }
  // Uniform in [0, bound); bound must not be 0. The bias of the remainder is below 2^-32 here.
  constexpr std::uint64_t Below(std::uint64_t bound) { return Next() % bound; }
  // True with a probability of `parts_per_million` / 10^6.
  constexpr bool Chance(std::uint32_t parts_per_million) {
    return Below(1'000'000) < parts_per_million;
  }

 private:
  std::uint64_t state_;
};

}  // namespace optireduce

#endif  // FFI_BASE_PRNG_H_
