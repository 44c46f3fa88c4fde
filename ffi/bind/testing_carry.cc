// What is late and who is behind, for tests: the window of calls on both sides, the sums of a
// shard, how long answers take, where members are among the calls.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/bind/testing.h"
#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/bucket/reduction.h"
#include "ffi/protocol/call/attendance.h"
#include "ffi/protocol/call/call_window.h"
#include "ffi/protocol/session/answer_time.h"

namespace nb = nanobind;

namespace optireduce {
namespace {

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
  // True if it is new, and in time. The sum is made once all are there.
  bool Receive(std::uint16_t source, float value) {
    const auto receipt = reduction_.Receive(MemberIndex(source), SegmentIndex(0),
                                            std::as_bytes(std::span(&value, 1)));
    ReduceIfReady();
    return receipt == Reduction::Receipt::kNew;
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
    if (reduction_.Ready(SegmentIndex(0))) reduction_.ReduceWithLate(SegmentIndex(0), {});
  }

  std::vector<float> values_;  // zeros
  BufferPool pool_;
  BucketLayout layout_;
  std::array<Leaf, 1> leaves_;
  BucketView bucket_;
  Reduction reduction_;
};

}  // namespace

void BindCarry(nb::module_& m) {
  nb::class_<SendWindow>(m, "SendWindow")
      .def(nb::init<std::uint32_t>(), nb::arg("max_lag"))
      .def("may_begin",
           [](const SendWindow& self, std::uint32_t call) { return self.MayBegin(Sequence(call)); })
      .def("begin", [](SendWindow& self, std::uint32_t call) { self.Begin(Sequence(call)); })
      .def("begun",
           [](const SendWindow& self, std::uint32_t call) { return self.Begun(Sequence(call)); })
      .def("deliver", [](SendWindow& self, std::uint32_t call) { self.Deliver(Sequence(call)); })
      .def("all_delivered", &SendWindow::all_delivered)
      .def("lags",
           [](const SendWindow& self, std::uint32_t call) { return self.Lags(Sequence(call)); });
  nb::class_<CallHistory> history(m, "CallHistory");
  nb::enum_<CallHistory::Receipt>(history, "Receipt")
      .value("NEW", CallHistory::Receipt::kNew)
      .value("DUPLICATE", CallHistory::Receipt::kDuplicate)
      .value("STALE", CallHistory::Receipt::kStale);
  history.def(nb::init<std::uint32_t>(), nb::arg("max_lag"))
      .def("take", [](CallHistory& self, std::uint32_t call, std::size_t within,
                      std::size_t segments) { return self.Take(Sequence(call), within, segments); })
      .def("remember",
           [](CallHistory& self, std::uint32_t call, const std::vector<bool>& received) {
             Bitmap bitmap(received.size());
             for (std::size_t i = 0; i < received.size(); ++i) {
               if (received[i]) bitmap.Insert(i);
             }
             self.Remember(Sequence(call), std::move(bitmap));
           });
  const auto length = [](double seconds) {
    return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
  };
  nb::class_<AnswerTime>(m, "AnswerTime")
      .def(nb::init<>())
      .def("note",
           [length](AnswerTime& self, double now, double gap, double peer_timeout) {
             self.Note(Instant(length(now)), length(gap), length(peer_timeout));
           })
      .def("patience", [length](const AnswerTime& self, double peer_timeout) {
        return std::chrono::duration<double>(self.Patience(length(peer_timeout))).count();
      });
  nb::class_<Attendance>(m, "Attendance")
      .def(nb::init<std::size_t>(), nb::arg("members"))
      .def("note", [](Attendance& self, std::uint16_t from,
                      std::uint32_t call) { return self.Note(MemberIndex(from), Sequence(call)); })
      .def("end_call",
           [](Attendance& self, const std::vector<bool>& heard) { self.EndCall(heard); })
      .def("absent", [](const Attendance& self,
                        std::uint16_t member) { return self.Absent(MemberIndex(member)); })
      .def("past", [](const Attendance& self, std::uint16_t member, std::uint32_t call) {
        return self.Past(MemberIndex(member), Sequence(call));
      });
  nb::class_<TestReduction>(m, "Reduction")
      .def(nb::init<std::uint16_t>(), nb::arg("members"))
      .def("receive", &TestReduction::Receive)
      .def("exclude", &TestReduction::Exclude)
      .def("sum", &TestReduction::Sum);
}

}  // namespace optireduce
