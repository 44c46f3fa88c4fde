// The flight record.

#include "ffi/runtime/flight_recorder.h"

#include "ffi/bind/event_dict.h"
#include "tests/native/binding.h"
#include "tests/native/recorded_call.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  nb::class_<FlightRecorder>(m, "FlightRecorder")
      .def(nb::init<std::size_t>(), "capacity"_a = kFlightRecords)
      .def("begin",
           [](FlightRecorder& self, const std::string& name, std::uint32_t sequence, double now) {
             return self.Begin(MakeCall(name, sequence, 100), At(now), FromSeconds(1e9 + now));
           })
      // True if the record of the call still existed.
      .def(
          "end",
          [](FlightRecorder& self, std::uint64_t number, double now, int code,
             const std::string& message, std::uint32_t sequence) {
            CallStats stats;
            stats.number = Sequence(sequence);
            return self.End(number, At(now), StatusOf(code, message), stats) != nullptr;
          },
          "number"_a, "now"_a, "code"_a, "message"_a, "sequence"_a = 0)
      .def("records", [](const FlightRecorder& self) { return ToList(self.Records()); })
      .def("open_records", [](const FlightRecorder& self) { return ToList(self.OpenRecords()); })
      // The number of the newest call that has ended.
      .def("last_ended",
           [](const FlightRecorder& self) {
             const std::optional<CallRecord> last = self.LastEnded();
             return last ? std::optional(last->number) : std::nullopt;
           })
      .def("under_way", &FlightRecorder::under_way)
      .def("oldest_untold",
           [](const FlightRecorder& self) {
             const CallRecord* const oldest = self.OldestUntold();
             return oldest == nullptr ? std::nullopt : std::optional(oldest->number);
           })
      .def("tell_all", &FlightRecorder::TellAll);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
