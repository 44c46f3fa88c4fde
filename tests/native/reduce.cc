// Sums of contributions.

#include "ffi/codec/reduce.h"

#include <cstring>

#include "ffi/codec/element_type.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

ElementType ElementTypeOf(const std::string& name) {
  for (std::uint8_t i = 0; i < kElementTypes; ++i) {
    if (NameOf(static_cast<ElementType>(i)) == name) return static_cast<ElementType>(i);
  }
  throw nb::value_error(("no element type is called " + name).c_str());
}

// The sum as bytes. Every buffer begins `misalignment` bytes after an aligned address. With
// `in_place` >= 0 the result replaces that contribution. Raises RuntimeError if memory around the
// result has changed.
nb::bytes SumOf(const std::string& dtype, const std::vector<nb::bytes>& contributions, double scale,
                std::size_t misalignment, int in_place) {
  const ElementType type = ElementTypeOf(dtype);
  const std::size_t bytes = contributions.at(0).size();
  constexpr std::size_t kGuardBytes = 64;
  constexpr std::byte kGuard{0xA5};
  const std::size_t begin = kGuardBytes + misalignment;
  const std::vector<std::byte> empty(begin + bytes + kGuardBytes, kGuard);
  std::vector<std::vector<std::byte>> buffers(contributions.size() + 1, empty);
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < contributions.size(); ++i) {
    if (contributions[i].size() != bytes) throw nb::value_error("contributions differ in length");
    std::byte* const at = buffers[i].data() + begin;
    if (bytes > 0) std::memcpy(at, contributions[i].data(), bytes);
    sources.push_back(at);
  }
  std::vector<std::byte>& target =
      in_place < 0 ? buffers.back() : buffers.at(static_cast<std::size_t>(in_place));
  SumContributions(type, sources, bytes / SizeOf(type), scale, target.data() + begin);
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool inside = i >= begin && i < begin + bytes;
    if (!inside && target[i] != kGuard) throw std::runtime_error("wrote beyond the result");
  }
  return nb::bytes(target.data() + begin, bytes);
}

void Bind(nb::module_& m) {
  m.def("sum_contributions", &SumOf, "dtype"_a, "contributions"_a, "scale"_a = 1.0,
        "misalignment"_a = 0, "in_place"_a = -1);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
