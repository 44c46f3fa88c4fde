// The sums of a shard.

#include "ffi/protocol/bucket/reduction.h"

#include <array>
#include <cstring>

#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// The shard of the first of some members: one segment of one float32 each.
class TestReduction {
 public:
  explicit TestReduction(std::uint16_t members)
      : values_(members),
        layout_(members, sizeof(float), members, sizeof(float)),
        leaves_{{{.data = reinterpret_cast<std::byte*>(values_.data()), .elements = members}}},
        bucket_(leaves_, sizeof(float)),
        reduction_(layout_, MemberIndex(0), ElementType::kFloat32, pool_) {
    reduction_.Attach(&bucket_);
  }
  // True if the contribution is new and on time. The sum is computed when all have arrived.
  bool Receive(std::uint16_t source, float value) {
    const auto receipt = reduction_.Receive(MemberIndex(source), SegmentIndex(0),
                                            std::as_bytes(std::span(&value, 1)));
    ReduceIfReady();
    return receipt == Receipt::kNew;
  }
  void Exclude(std::uint16_t source) {
    reduction_.Exclude(MemberIndex(source));
    ReduceIfReady();
  }
  std::optional<float> Sum() const {
    if (!reduction_.Reduced(SegmentIndex(0))) return std::nullopt;
    float sum = 0;
    std::memcpy(&sum, reduction_.Sum(SegmentIndex(0)).data(), sizeof(sum));
    return sum;
  }

 private:
  void ReduceIfReady() {
    if (reduction_.Ready(SegmentIndex(0)))
      reduction_.Reduce(SegmentIndex(0), {}, /*rescale=*/false);
  }

  std::vector<float> values_;  // zeros
  BufferPool pool_;
  BucketLayout layout_;
  std::array<Leaf, 1> leaves_;
  BucketView bucket_;
  Reduction reduction_;
};

void Bind(nb::module_& m) {
  nb::class_<TestReduction>(m, "Reduction")
      .def(nb::init<std::uint16_t>(), "members"_a)
      .def("receive", &TestReduction::Receive)
      .def("exclude", &TestReduction::Exclude)
      .def("sum", &TestReduction::Sum);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
