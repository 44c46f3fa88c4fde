// Leaves as one bucket.

#include "ffi/protocol/bucket/bucket_view.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// Leaves of bytes.
class TestBucketView {
 public:
  explicit TestBucketView(std::vector<std::vector<std::uint8_t>> leaves)
      : leaves_(std::move(leaves)) {
    std::vector<Leaf> all;
    for (std::vector<std::uint8_t>& leaf : leaves_) {
      all.push_back({.data = reinterpret_cast<std::byte*>(leaf.data()), .elements = leaf.size()});
    }
    view_ = BucketView(all, 1);
  }
  // The bytes, and whether they were copied.
  std::pair<std::vector<std::uint8_t>, bool> Read(std::uint64_t offset, std::uint64_t bytes) const {
    std::vector<std::byte> scratch(bytes);
    const auto read = view_.Read({.offset = offset, .bytes = bytes}, scratch);
    std::vector<std::uint8_t> values;
    for (const std::byte byte : read) values.push_back(std::to_integer<std::uint8_t>(byte));
    return {values, bytes > 0 && read.data() == scratch.data()};
  }
  void Write(std::uint64_t offset, const std::vector<std::uint8_t>& values) {
    view_.Write(offset, std::as_bytes(std::span(values)));
  }
  void Zero(std::uint64_t offset, std::uint64_t bytes) {
    view_.Zero({.offset = offset, .bytes = bytes});
  }
  std::uint64_t bytes() const { return view_.bytes(); }
  std::vector<std::vector<std::uint8_t>> leaves() const { return leaves_; }

 private:
  std::vector<std::vector<std::uint8_t>> leaves_;
  BucketView view_;
};

void Bind(nb::module_& m) {
  nb::class_<TestBucketView>(m, "BucketView")
      .def(nb::init<std::vector<std::vector<std::uint8_t>>>())
      .def("read", &TestBucketView::Read)
      .def("write", &TestBucketView::Write)
      .def("zero", &TestBucketView::Zero)
      .def_prop_ro("bytes", &TestBucketView::bytes)
      .def_prop_ro("leaves", &TestBucketView::leaves);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
