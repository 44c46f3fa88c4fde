// Values of some segments.

#include "ffi/protocol/bucket/segment_store.h"

#include <cstring>

#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// The store of some segments of a float32 bucket of one member.
class TestSegmentStore {
 public:
  TestSegmentStore(std::uint64_t elements, std::size_t segment_elements, std::uint32_t first,
                   std::uint32_t segments)
      : layout_(elements, sizeof(float), 1, segment_elements * sizeof(float)),
        store_(layout_, SegmentIndex(first), segments, ElementType::kFloat32, pool_) {}
  TestSegmentStore(const TestSegmentStore&) = delete;

  void Add(std::uint32_t segment, const std::vector<float>& values) {
    store_.Add(SegmentIndex(segment), Whole(segment, values));
  }
  void Replace(std::uint32_t segment, const std::vector<float>& values) {
    store_.Replace(SegmentIndex(segment), Whole(segment, values));
  }
  std::vector<float> Get(std::uint32_t segment) const {
    const std::span<const std::byte> bytes = store_.Get(SegmentIndex(segment));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  bool Contains(std::uint32_t segment) const { return store_.Contains(SegmentIndex(segment)); }
  void Remove(std::uint32_t segment) { store_.Remove(SegmentIndex(segment)); }
  void Clear() { store_.Clear(); }
  bool empty() const { return store_.empty(); }
  std::uint64_t held_bytes() const { return store_.held_bytes(); }
  std::size_t used_bytes() const { return pool_.used_bytes(); }

 private:
  std::span<const std::byte> Whole(std::uint32_t segment, const std::vector<float>& values) const {
    if (layout_.Segment(SegmentIndex(segment)).bytes != values.size() * sizeof(float)) {
      throw std::invalid_argument("values: not a whole segment");
    }
    return std::as_bytes(std::span(values));
  }

  BufferPool pool_;
  BucketLayout layout_;
  SegmentStore store_;
};

void Bind(nb::module_& m) {
  nb::class_<TestSegmentStore>(m, "SegmentStore")
      .def(nb::init<std::uint64_t, std::size_t, std::uint32_t, std::uint32_t>(), nb::kw_only(),
           "elements"_a, "segment_elements"_a, "first"_a, "segments"_a)
      .def("add", &TestSegmentStore::Add)
      .def("replace", &TestSegmentStore::Replace)
      .def("get", &TestSegmentStore::Get)
      .def("contains", &TestSegmentStore::Contains)
      .def("remove", &TestSegmentStore::Remove)
      .def("clear", &TestSegmentStore::Clear)
      .def_prop_ro("empty", &TestSegmentStore::empty)
      .def_prop_ro("held_bytes", &TestSegmentStore::held_bytes)
      .def_prop_ro("used_bytes", &TestSegmentStore::used_bytes);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
