// The data of a collective between its calls.

#include "ffi/protocol/collective/deferred_data.h"

#include <cstring>

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

std::span<const std::byte> BytesOf(const float& value) {
  return std::as_bytes(std::span(&value, 1));
}

// The data of member 0; each member owns a segment of one float32.
class TestDeferredData {
 public:
  TestDeferredData(std::uint16_t members, std::uint32_t max_lag, bool goes_on)
      : layout_(members, sizeof(float), members, sizeof(float)),
        data_(layout_, MemberIndex(0), ElementType::kFloat32, max_lag, goes_on, pool_) {}
  TestDeferredData(const TestDeferredData&) = delete;

  void AddLateResult(std::uint32_t segment, float value) {
    data_.late_results().Add(SegmentIndex(segment), BytesOf(value));
  }
  void AddLateContribution(float value) {
    data_.late_contributions().Add(SegmentIndex(0), BytesOf(value));
  }
  // Adds the late results to the bucket, and returns it.
  std::vector<float> MoveLateResults(std::vector<float> bucket) {
    BucketView view = ViewOf(bucket);
    data_.MoveLateResults(view);
    return bucket;
  }
  // Submits a bucket to a call that is over, and returns the bucket.
  std::vector<float> DeferAll(std::vector<float> bucket) {
    BucketView view = ViewOf(bucket);
    data_.DeferAll(view);
    return bucket;
  }
  // The deferred contribution to the owner, which is taken out.
  std::optional<float> PopDeferred(std::uint16_t owner) {
    const auto popped = data_.PopDeferredSends(Stage::kReduceScatter, MemberIndex(owner));
    if (popped == nullptr) return std::nullopt;
    float value = 0;
    std::memcpy(&value, popped->Get(SegmentIndex(owner)).data(), sizeof(value));
    return value;
  }
  std::vector<float> MoveDeferredSends(std::uint16_t to, std::vector<float> bucket) {
    BucketView view = ViewOf(bucket);
    data_.MoveDeferredSends(MemberIndex(to), view);
    return bucket;
  }
  void RecordMissed(std::uint64_t bytes) { data_.RecordMissed(bytes); }
  std::uint64_t LateBytes() const { return data_.LateBytes(); }

  // A contribution of the call begins to go to the member, or is delivered there.
  void Begin(std::uint16_t to, std::uint32_t call) { Window(to).Begin(Sequence(call)); }
  void Deliver(std::uint16_t to, std::uint32_t call) { Window(to).Deliver(Sequence(call)); }
  void Release(std::uint16_t peer) { data_.DropPeer(MemberIndex(peer)); }
  bool Lags(std::uint16_t peer, std::uint32_t call) const {
    return data_.Lags(MemberIndex(peer), Sequence(call));
  }
  bool AnyLags(std::uint32_t call) const { return data_.Lags(Sequence(call)); }
  void SuspendLagging(std::uint32_t call) { data_.SuspendLagging(Sequence(call)); }
  void ResumeCaughtUp(std::uint32_t call) { data_.ResumeCaughtUp(Sequence(call)); }
  bool suspended(std::uint16_t peer) const { return data_.suspended(MemberIndex(peer)); }

  void RecordResults(std::uint16_t owner, std::uint32_t call, bool complete) {
    data_.RecordResults(MemberIndex(owner), Sequence(call), complete);
  }
  std::uint16_t CompleteBefore(std::uint16_t owner, std::uint32_t call) const {
    return data_.CompleteBefore(MemberIndex(owner), Sequence(call));
  }
  void RecordOpening(std::uint32_t call, double at) { data_.RecordOpening(Sequence(call), At(at)); }
  std::optional<double> OpeningOf(std::uint32_t call) const {
    const std::optional<Instant> at = data_.OpeningOf(Sequence(call));
    return at ? std::optional(ToSeconds(*at)) : std::nullopt;
  }

 private:
  static BucketView ViewOf(std::vector<float>& bucket) {
    const Leaf leaf{.data = reinterpret_cast<std::byte*>(bucket.data()), .elements = bucket.size()};
    return BucketView({&leaf, 1}, sizeof(float));
  }
  SendWindow& Window(std::uint16_t to) {
    return data_.sending(Stage::kReduceScatter, MemberIndex(to)).window;
  }

  BufferPool pool_;
  BucketLayout layout_;
  DeferredData data_;
};

void Bind(nb::module_& m) {
  nb::class_<TestDeferredData>(m, "DeferredData")
      .def(nb::init<std::uint16_t, std::uint32_t, bool>(), nb::kw_only(), "members"_a,
           "max_lag"_a = 2, "goes_on"_a = false)
      .def("add_late_result", &TestDeferredData::AddLateResult)
      .def("add_late_contribution", &TestDeferredData::AddLateContribution)
      .def("move_late_results", &TestDeferredData::MoveLateResults)
      .def("defer_all", &TestDeferredData::DeferAll)
      .def("pop_deferred", &TestDeferredData::PopDeferred)
      .def("move_deferred_sends", &TestDeferredData::MoveDeferredSends)
      .def("note_missed", &TestDeferredData::RecordMissed)
      .def_prop_ro("late_bytes", &TestDeferredData::LateBytes)
      .def("begin", &TestDeferredData::Begin)
      .def("deliver", &TestDeferredData::Deliver)
      .def("release", &TestDeferredData::Release)
      .def("lags", &TestDeferredData::Lags)
      .def("any_lags", &TestDeferredData::AnyLags)
      .def("suspend_lagging", &TestDeferredData::SuspendLagging)
      .def("resume_caught_up", &TestDeferredData::ResumeCaughtUp)
      .def("suspended", &TestDeferredData::suspended)
      .def("note_results", &TestDeferredData::RecordResults)
      .def("complete_before", &TestDeferredData::CompleteBefore)
      .def("note_opening", &TestDeferredData::RecordOpening)
      .def("opening_of", &TestDeferredData::OpeningOf);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
