// The segments of a bucket.

#include "ffi/protocol/bucket/bucket_layout.h"

#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  m.def(
      "bucket_segments",
      [](std::uint64_t elements, std::size_t element_bytes, std::uint16_t members,
         std::size_t payload, std::uint16_t first_owner, std::uint16_t owners) {
        const BucketLayout layout(
            elements, element_bytes, members, payload,
            Owners{.first = first_owner, .count = owners == 0 ? members : owners});
        std::vector<std::tuple<int, std::uint64_t, std::uint64_t>> segments;
        for (std::uint32_t s = 0; s < layout.segments(); ++s) {
          const ByteRange range = layout.Segment(SegmentIndex(s));
          segments.emplace_back(layout.OwnerOf(SegmentIndex(s)).value(), range.offset, range.bytes);
        }
        return segments;
      },
      "elements"_a, "element_bytes"_a, "members"_a, "payload"_a, "first_owner"_a = 0,
      "owners"_a = 0);
  m.def("owners_of", [](const Collective& collective, std::uint32_t id, std::size_t least) {
    const Owners owners = OwnersOf(collective.ToSpec(), CollectiveId(id), least);
    return std::tuple(owners.first, owners.count);
  });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
