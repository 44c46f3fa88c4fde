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

// Leaves of bytes whose values lie elsewhere than their results, which are zeros at first.
class TestValuesApart {
 public:
  TestValuesApart(std::vector<std::vector<std::uint8_t>> values, std::uint16_t members,
                  std::size_t segment_bytes)
      : values_(std::move(values)), results_(values_), layout_(Size(), 1, members, segment_bytes) {
    std::vector<Leaf> all;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      std::ranges::fill(results_[i], std::uint8_t{0});
      all.push_back({.data = reinterpret_cast<std::byte*>(results_[i].data()),
                     .elements = values_[i].size(),
                     .from = reinterpret_cast<const std::byte*>(values_[i].data())});
    }
    view_ = BucketView(all, 1, layout_);
  }
  TestValuesApart(const TestValuesApart&) = delete;

  std::vector<std::uint8_t> Read(std::uint32_t segment) const {
    std::vector<std::byte> scratch(layout_.LargestSegmentBytes());
    std::vector<std::uint8_t> values;
    for (const std::byte byte : view_.Read(layout_.Segment(SegmentIndex(segment)), scratch)) {
      values.push_back(std::to_integer<std::uint8_t>(byte));
    }
    return values;
  }
  void Fill(std::uint32_t segment, std::uint8_t value) {
    const ByteRange range = layout_.Segment(SegmentIndex(segment));
    if (value == 0) return view_.Zero(range);
    view_.Write(range.offset, std::vector<std::byte>(range.bytes, std::byte{value}));
  }
  void Settle() { view_.Settle(); }
  // The first byte and the one behind the last of each segment.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> segments() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const SegmentIndex segment : layout_.Segments()) {
      const ByteRange range = layout_.Segment(segment);
      ranges.emplace_back(range.offset, range.offset + range.bytes);
    }
    return ranges;
  }
  std::vector<std::vector<std::uint8_t>> values() const { return values_; }
  std::vector<std::vector<std::uint8_t>> results() const { return results_; }

 private:
  std::size_t Size() const {
    std::size_t size = 0;
    for (const std::vector<std::uint8_t>& leaf : values_) size += leaf.size();
    return size;
  }

  std::vector<std::vector<std::uint8_t>> values_;
  std::vector<std::vector<std::uint8_t>> results_;
  BucketLayout layout_;
  BucketView view_;
};

void Bind(nb::module_& m) {
  nb::class_<TestValuesApart>(m, "ValuesApart")
      .def(nb::init<std::vector<std::vector<std::uint8_t>>, std::uint16_t, std::size_t>())
      .def("read", &TestValuesApart::Read)
      .def("fill", &TestValuesApart::Fill)
      .def("settle", &TestValuesApart::Settle)
      .def_prop_ro("segments", &TestValuesApart::segments)
      .def_prop_ro("values", &TestValuesApart::values)
      .def_prop_ro("results", &TestValuesApart::results);
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
