// The call monitor.

#include "ffi/runtime/call_monitor.h"

#include "ffi/bind/event_dict.h"
#include "tests/native/binding.h"
#include "tests/native/recorded_call.h"

namespace optireduce::testing {
namespace OR_FILE {

void Bind(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<CallMonitor>(m, "CallMonitor")
      .def(
          "__init__",
          [](CallMonitor* self, double stall_timeout, double unavailable_wait,
             std::uint16_t world_size) {
            CommunicatorOptions options;
            options.world_size = world_size;
            options.stall_timeout = FromSeconds(stall_timeout);
            options.peer_timeout = 2 * FromSeconds(unavailable_wait);
            new (self) CallMonitor(options);
          },
          "stall_timeout"_a, "unavailable_wait"_a, "world_size"_a = 4)
      .def(
          "begin",
          [](CallMonitor& self, const std::string& name, std::uint32_t sequence,
             std::uint16_t spare, bool defers, bool pairs) {
            Submission call = MakeCall(name, sequence, 100);
            call.quorum.spare = spare;
            if (defers) call.spec.reduce_scatter = call.spec.all_gather = LatePolicy::kDefer;
            if (pairs) call.spec.element_type = ElementType::kComplex64;
            return self.Begin(call);
          },
          "name"_a, "sequence"_a, "spare"_a = 0, "defers"_a = false, "pairs"_a = false)
      .def(
          "end",
          [](CallMonitor& self, std::uint64_t number, int code, const std::string& message,
             const std::vector<std::uint16_t>& absent, double late) {
            CallStats stats;
            if (late > 0) stats.deadline = FromSeconds(1);
            stats.missing_contributions = late;
            for (const std::uint16_t rank : absent) stats.absent.emplace_back(rank);
            self.End(number, StatusOf(code, message), stats);
          },
          "number"_a, "code"_a, "message"_a, "absent"_a = std::vector<std::uint16_t>(),
          "late"_a = 0.0)
      .def(
          "set_live",
          [](CallMonitor& self, const std::vector<std::uint16_t>& live, const std::string& path) {
            self.SetLive({live.begin(), live.end()}, path);
          },
          "live"_a, "path"_a = "")
      .def("live", [](const CallMonitor& self) { return self.members().size(); })
      .def("wait",
           [](CallMonitor& self) {
             std::optional<MonitorEvent> event;
             {
               const nb::gil_scoped_release release;
               event = self.Wait();
             }
             return ToObject(event);
           })
      .def_prop_ro("events_dropped", &CallMonitor::events_dropped)
      .def("close", &CallMonitor::Close, Release());
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
