// The segments of a bucket.

#include "ffi/protocol/bucket/bucket_layout.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  m.def("bucket_segments", [](std::uint64_t elements, std::size_t element_bytes, int members,
                              std::size_t payload) {
    const BucketLayout layout(elements, element_bytes, static_cast<std::uint16_t>(members),
                              payload);
    std::vector<std::tuple<int, std::uint64_t, std::uint64_t>> segments;
    for (std::uint32_t s = 0; s < layout.segments(); ++s) {
      const ByteRange range = layout.Segment(SegmentIndex(s));
      segments.emplace_back(layout.OwnerOf(SegmentIndex(s)).value(), range.offset, range.bytes);
    }
    return segments;
  });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
