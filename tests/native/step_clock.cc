// The step of a program, the calls and the presence of the others, the number of a drain, and
// skipped calls.

#include "ffi/protocol/lifecycle/step_clock.h"

#include "ffi/protocol/collective/drain_number.h"
#include "ffi/protocol/collective/others_calls.h"
#include "ffi/protocol/collective/presence.h"
#include "ffi/protocol/membership/skipped_calls.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

std::optional<std::uint32_t> ValueOf(const std::optional<Sequence>& sequence) {
  return sequence ? std::optional(sequence->value()) : std::nullopt;
}

void BindOthers(nb::module_& m) {
  nb::class_<OthersCalls>(m, "OthersCalls")
      .def(nb::init<>())
      .def("record", [](OthersCalls& self, double now,
                        std::uint32_t call) { self.Record(At(now), Sequence(call)); })
      .def("record_wait", &OthersCalls::RecordWait)
      .def("newest", [](const OthersCalls& self) { return ValueOf(self.newest()); })
      .def("next_due", [](const OthersCalls& self) { return ToSeconds(self.NextDue()); });

  nb::class_<DrainNumber>(m, "DrainNumber")
      .def(nb::init<>())
      .def("begin", [](DrainNumber& self, std::uint32_t number) { self.Begin(Sequence(number)); })
      .def("record_waiting",
           [](DrainNumber& self, std::uint16_t member, std::uint32_t least) {
             self.RecordWaiting(Rank(member), Sequence(least));
           })
      .def("record_called",
           [](DrainNumber& self, std::uint16_t member, std::uint32_t call) {
             self.RecordCalled(Rank(member), Sequence(call));
           })
      .def("least", [](const DrainNumber& self,
                       std::uint16_t member) { return ValueOf(self.Least(Rank(member))); })
      .def("record_begun",
           [](DrainNumber& self, std::uint32_t drain) { self.RecordBegun(Sequence(drain)); })
      .def("begun", [](const DrainNumber& self) { return ValueOf(self.begun()); });
}

void BindPresence(nb::module_& m) {
  nb::class_<Presence>(m, "Presence")
      .def(nb::init<>())
      .def("call", &Presence::Call)
      .def("record_call", [](Presence& self, std::uint16_t rank,
                             std::uint64_t call) { self.RecordCall(Rank(rank), call); })
      .def(
          "record_return",
          [](Presence& self, std::uint16_t rank, std::uint32_t collective) {
            self.RecordReturn(Rank(rank), CollectiveId(collective));
          },
          nb::arg("rank"), nb::arg("collective") = 0)
      .def("end_wait", [](Presence& self, std::uint16_t rank) { self.EndWait(Rank(rank)); })
      .def("record_wait",
           [](Presence& self, std::uint16_t rank, std::uint32_t skipped) {
             self.RecordWait(Rank(rank),
                             {.collective = CollectiveId(0), .sequence = Sequence(skipped)});
           })
      .def("waits_after",
           [](const Presence& self, std::uint16_t rank) {
             const std::optional<CallId> skipped = self.WaitsAfter(Rank(rank));
             return skipped ? std::optional(skipped->sequence.value()) : std::nullopt;
           })
      .def("record_missed", [](Presence& self, std::uint16_t rank,
                               std::uint64_t call) { self.RecordMissed(Rank(rank), call); })
      .def("record_sums", [](Presence& self, std::uint16_t rank,
                             std::uint64_t call) { self.RecordSums(Rank(rank), call); })
      .def("record_missed_sums",
           [](Presence& self, std::uint16_t rank, std::uint64_t call) {
             self.RecordMissedSums(Rank(rank), call);
           })
      .def("record_drain", [](Presence& self, std::uint16_t rank) { self.RecordDrain(Rank(rank)); })
      .def("end_drains", &Presence::EndDrains)
      .def("absent",
           [](const Presence& self, std::uint16_t rank) { return self.Absent(Rank(rank)); })
      .def("serves",
           [](const Presence& self, std::uint16_t rank) { return self.Serves(Rank(rank)); })
      .def("drains",
           [](const Presence& self, std::uint16_t rank) { return self.Drains(Rank(rank)); });
}

void Bind(nb::module_& m) {
  BindOthers(m);
  BindPresence(m);
  nb::class_<StepClock> clock(m, "StepClock");
  nb::enum_<StepClock::State>(clock, "State")
      .value("IN_STEP", StepClock::State::kInStep)
      .value("WAITING", StepClock::State::kWaiting)
      .value("JOINED", StepClock::State::kJoined)
      .value("PASSING", StepClock::State::kPassing);
  clock.def(nb::init<>())
      .def("state", &StepClock::state)
      .def("call",
           [](StepClock& self, std::uint32_t collective) { self.Call(CollectiveId(collective)); })
      .def("is_patient",
           [](const StepClock& self, std::uint32_t next) { return self.IsPatient(Sequence(next)); })
      .def("wait", &StepClock::Wait, nb::arg("patient") = true)
      .def("join", &StepClock::Join)
      .def("begin_complete", &StepClock::BeginComplete)
      .def("waits_for_next", &StepClock::WaitsForNext)
      .def("pass_", &StepClock::Pass);

  nb::class_<SkippedCalls>(m, "SkippedCalls")
      .def(nb::init<>())
      .def("of", [](const SkippedCalls& self,
                    std::uint32_t bucket) { return self.Of(CollectiveId(bucket)); })
      .def("begin", [](SkippedCalls& self, std::uint32_t bucket, std::uint32_t position,
                       std::uint32_t number) {
        return self.Begin(CollectiveId(bucket), Sequence(position), Sequence(number));
      });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
