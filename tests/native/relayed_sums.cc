// Sums that a rank forwards.

#include "ffi/protocol/call/relayed_sums.h"

#include <cstring>

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// The sums at member 0; each member owns so many segments of one float32.
class TestRelayedSums {
 public:
  TestRelayedSums(std::uint16_t members, std::uint64_t segments_each)
      : collective_(CollectiveId(1), SpecOf(members, segments_each), MemberIndex(0), sizeof(float)),
        relayed_(collective_, pool_) {}
  TestRelayedSums(const TestRelayedSums&) = delete;

  void Add(std::uint32_t segment, float sum) {
    relayed_.Add(SegmentIndex(segment), std::as_bytes(std::span(&sum, 1)));
  }
  float Sum(std::uint32_t segment) const {
    float value = 0;
    std::memcpy(&value, relayed_.Sum(SegmentIndex(segment)).data(), sizeof(value));
    return value;
  }
  // (segment, is a retransmission)
  std::optional<std::pair<std::uint32_t, bool>> Next(std::uint16_t to) {
    const auto item = relayed_.Next(MemberIndex(to));
    if (!item) return std::nullopt;
    return std::pair(item->segment.value(), item->retransmission);
  }
  void Pop(std::uint16_t to) { relayed_.Pop(MemberIndex(to)); }
  void Retransmit(std::uint16_t to, std::uint32_t segment) {
    relayed_.Retransmit(MemberIndex(to), SegmentIndex(segment));
  }
  void Deliver(std::uint16_t to, std::uint32_t segment) {
    relayed_.Deliver(MemberIndex(to), SegmentIndex(segment));
  }
  bool Delivered(std::uint16_t to) const { return relayed_.Delivered(MemberIndex(to)); }
  void Release(std::uint16_t to) { relayed_.DropPeer(MemberIndex(to)); }
  std::uint32_t Unsent(std::uint16_t to) const { return relayed_.Unsent(MemberIndex(to)); }
  std::uint64_t memory_bytes() const { return pool_.used_bytes(); }

 private:
  static CollectiveSpec SpecOf(std::uint16_t members, std::uint64_t segments_each) {
    CollectiveSpec spec;
    spec.name = "grads";
    spec.elements = members * segments_each;
    for (std::uint16_t r = 0; r < members; ++r) spec.members.push_back(Rank(r));
    return spec;
  }

  BufferPool pool_;
  optireduce::Collective collective_;
  RelayedSums relayed_;
};

void Bind(nb::module_& module) {
  nb::class_<TestRelayedSums>(module, "RelayedSums")
      .def(nb::init<std::uint16_t, std::uint64_t>(), "members"_a, "segments_each"_a)
      .def("add", &TestRelayedSums::Add)
      .def("sum", &TestRelayedSums::Sum)
      .def("next", &TestRelayedSums::Next)
      .def("pop", &TestRelayedSums::Pop)
      .def("retransmit", &TestRelayedSums::Retransmit)
      .def("deliver", &TestRelayedSums::Deliver)
      .def("delivered", &TestRelayedSums::Delivered)
      .def("release", &TestRelayedSums::Release)
      .def("unsent", &TestRelayedSums::Unsent)
      .def_prop_ro("memory_bytes", &TestRelayedSums::memory_bytes);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
