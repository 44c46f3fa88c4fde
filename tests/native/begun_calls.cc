// Calls that are begun and ended in two steps, whose engine is the test.

#include "ffi/runtime/begun_calls.h"

#include <cstring>

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// An ended call, as its program sees it.
struct Ended {
  std::string error;
  std::vector<float> values;
};

class TestBegunCalls {
 public:
  std::uint32_t Begin(const std::vector<std::vector<float>>& leaves, std::uint32_t rank) {
    DeviceCall call;
    call.spec.name = "x";
    std::vector<std::vector<float>> copies = leaves;
    for (std::vector<float>& leaf : copies) {
      call.spec.elements += leaf.size();
      call.leaves.push_back(
          {.data = reinterpret_cast<std::byte*>(leaf.data()), .elements = leaf.size()});
    }
    const std::uint32_t number = Unwrap(begun_->Begin({.rank = rank}, call));
    started_.push_back(std::move(call));
    return number;
  }
  // The contribution of the n-th begun call.
  std::vector<float> Contribution(std::size_t which) const {
    const Leaf& leaf = started_.at(which).leaves.front();
    const auto* const values = reinterpret_cast<const float*>(leaf.data);
    return {values, values + leaf.elements};
  }
  // Ends the n-th allreduce: adds `added` to every value.
  void Finish(std::size_t which, float added, const std::string& error) {
    DeviceCall& call = started_.at(which);
    for (float& value : std::span(reinterpret_cast<float*>(call.leaves.front().data),
                                  call.leaves.front().elements)) {
      value += added;
    }
    const Status status = error.empty() ? Status() : Status(StatusCode::kUnavailable, error);
    call.done({.status = status, .stats = {}, .sequence = {}});
  }
  void End(std::uint32_t number, std::size_t elements, std::uint32_t rank) {
    const auto result = std::make_shared<std::vector<float>>(elements);
    RaiseUnlessOk(begun_->End({.rank = rank}, number,
                              {.bytes = elements * sizeof(float),
                               .copy =
                                   [result](std::span<const std::byte> values) {
                                     std::memcpy(result->data(), values.data(), values.size());
                                   },
                               .done =
                                   [this, result](const DeviceResult& of, std::size_t) {
                                     ended_.push_back(
                                         {.error = of.status.message(), .values = *result});
                                   }}));
  }
  const std::vector<Ended>& ended() const { return ended_; }
  BegunCallsCounters counters() const { return begun_->counters(); }

 private:
  const std::shared_ptr<BegunCalls> begun_ = std::make_shared<BegunCalls>();
  std::vector<DeviceCall> started_;
  std::vector<Ended> ended_;
};

void Bind(nb::module_& m) {
  nb::class_<Ended>(m, "EndedCall").def_ro("error", &Ended::error).def_ro("values", &Ended::values);
  nb::class_<TestBegunCalls>(m, "BegunCalls")
      .def(nb::init<>())
      .def_ro_static("open_max", &BegunCalls::kOpenMax)
      .def("begin", &TestBegunCalls::Begin, "leaves"_a, "rank"_a = 0)
      .def("contribution", &TestBegunCalls::Contribution, "which"_a)
      .def("finish", &TestBegunCalls::Finish, "which"_a, "added"_a = 0.0f, "error"_a = "")
      .def("end", &TestBegunCalls::End, "number"_a, "elements"_a, "rank"_a = 0)
      .def_prop_ro("ended", &TestBegunCalls::ended)
      .def_prop_ro("under_way",
                   [](const TestBegunCalls& self) { return self.counters().under_way; })
      .def_prop_ro("open", [](const TestBegunCalls& self) { return self.counters().open; })
      .def_prop_ro("memory_bytes",
                   [](const TestBegunCalls& self) { return self.counters().memory_bytes; })
      .def_prop_ro("dropped", [](const TestBegunCalls& self) { return self.counters().dropped; });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
