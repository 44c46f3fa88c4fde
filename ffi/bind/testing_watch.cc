// What watches the calls, for tests: arrivals, the slow rank, short deadlines, the flight record,
// the watch.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ffi/bind/testing.h"
#include "ffi/bind/watch_dict.h"
#include "ffi/protocol/call/arrivals.h"
#include "ffi/runtime/call_watch.h"
#include "ffi/runtime/flight_recorder.h"
#include "ffi/runtime/short_deadline.h"
#include "ffi/runtime/slow_rank.h"

namespace nb = nanobind;

namespace optireduce {
namespace {

using nb::literals::operator""_a;

Duration Length(double seconds) {
  return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}

Instant At(double seconds) { return Instant(Length(seconds)); }

Submission Call(const std::string& name, std::uint32_t sequence, std::uint64_t elements) {
  Submission submission;
  submission.spec.name = name;
  submission.spec.description = name + " f32";
  submission.spec.elements = elements;
  submission.sequence = Sequence(sequence);
  return submission;
}

Status StatusOf(int code, const std::string& message) {
  return code == 0 ? Status() : Status(static_cast<StatusCode>(code), message);
}

void BindArrivals(nb::module_& m) {
  nb::class_<Arrivals>(m, "Arrivals")
      .def("__init__",
           [](Arrivals* self, std::uint16_t member, std::uint16_t members) {
             new (self) Arrivals(MemberIndex(member), members);
           })
      .def("note", [](Arrivals& self, double now,
                      std::uint16_t from) { self.Note(At(now), MemberIndex(from)); })
      // (member, behind, whether it is absent)
      .def("find_latest", [](const Arrivals& self, double submitted_at, double now) {
        const Arrivals::Latest latest = self.FindLatest(At(submitted_at), At(now));
        return std::make_tuple(latest.member.index(),
                               std::chrono::duration<double>(latest.behind).count(),
                               self.Absent(latest.member));
      });
}

void BindSlowRank(nb::module_& m) {
  nb::class_<SlowRankWatch>(m, "SlowRankWatch")
      .def(nb::init<>())
      .def(
          "add",
          [](SlowRankWatch& self, const std::string& collective, double end, std::uint16_t slowest,
             double behind, double elapsed, const std::vector<std::uint16_t>& absent, bool passed) {
            const CallStats stats{.elapsed = Length(elapsed),
                                  .slowest = Rank(slowest),
                                  .behind = Length(behind),
                                  .absent = {absent.begin(), absent.end()},
                                  .passed = passed};
            std::optional<WatchNews> news;
            if (auto told = self.Add(collective, stats, At(end))) news = std::move(*told);
            return ToObject(news);
          },
          "collective"_a, "end"_a, "slowest"_a, "behind"_a, "elapsed"_a,
          "absent"_a = std::vector<std::uint16_t>(), "passed"_a = false)
      .def("forget", [](SlowRankWatch& self, std::uint16_t rank) { self.Forget(Rank(rank)); });
}

void BindShortDeadline(nb::module_& m) {
  nb::class_<ShortDeadlineWatch>(m, "ShortDeadlineWatch")
      .def("__init__",
           [](ShortDeadlineWatch* self, double deadline_max) {
             new (self) ShortDeadlineWatch(Length(deadline_max));
           })
      .def(
          "add",
          [](ShortDeadlineWatch& self, const std::string& collective, double needed,
             double missing_contributions, double missing_results) {
            CallStats stats;
            stats.missing_contributions = missing_contributions;
            stats.missing_results = missing_results;
            stats.deadline_needed = Length(needed);
            std::optional<WatchNews> news;
            if (auto told = self.Add(collective, stats)) news = std::move(*told);
            return ToObject(news);
          },
          "collective"_a, "needed"_a, "missing_contributions"_a, "missing_results"_a = 0.0);
}

void BindFlightRecorder(nb::module_& m) {
  nb::class_<FlightRecorder>(m, "FlightRecorder")
      .def(nb::init<std::size_t>(), "capacity"_a = kFlightRecords)
      .def("begin",
           [](FlightRecorder& self, const std::string& name, std::uint32_t sequence, double now) {
             return self.Begin(Call(name, sequence, 100), At(now), Length(1e9 + now));
           })
      // Whether the call was still there.
      .def("end",
           [](FlightRecorder& self, std::uint64_t number, double now, int code,
              const std::string& message) {
             return self.End(number, At(now), StatusOf(code, message), CallStats{}) != nullptr;
           })
      .def("records", [](const FlightRecorder& self) { return ToList(self.Records()); })
      .def("under_way", &FlightRecorder::under_way)
      .def("oldest_untold",
           [](const FlightRecorder& self) {
             const CallRecord* const oldest = self.OldestUntold();
             return oldest == nullptr ? std::nullopt : std::optional(oldest->number);
           })
      .def("tell_all", &FlightRecorder::TellAll);
}

void BindCallWatch(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<CallWatch>(m, "CallWatch")
      .def(
          "__init__",
          [](CallWatch* self, double stall_timeout, double unavailable_wait,
             std::uint16_t world_size) {
            new (self) CallWatch({.world_size = world_size,
                                  .stall_timeout = Length(stall_timeout),
                                  .unavailable_wait = Length(unavailable_wait)});
          },
          "stall_timeout"_a, "unavailable_wait"_a, "world_size"_a = 4)
      .def("begin", [](CallWatch& self, const std::string& name,
                       std::uint32_t sequence) { return self.Begin(Call(name, sequence, 100)); })
      .def("end",
           [](CallWatch& self, std::uint64_t number, int code, const std::string& message) {
             self.End(number, StatusOf(code, message), CallStats{});
           })
      .def("set_live",
           [](CallWatch& self, const std::vector<std::uint16_t>& live) {
             self.SetLive({live.begin(), live.end()});
           })
      .def("live", &CallWatch::live)
      .def("wait",
           [](CallWatch& self) {
             std::optional<WatchNews> news;
             {
               const nb::gil_scoped_release release;
               news = self.Wait();
             }
             return ToObject(news);
           })
      .def("close", &CallWatch::Close, Release());
}

}  // namespace

void BindWatch(nb::module_& m) {
  BindArrivals(m);
  BindSlowRank(m);
  BindShortDeadline(m);
  BindFlightRecorder(m);
  BindCallWatch(m);
}

}  // namespace optireduce
