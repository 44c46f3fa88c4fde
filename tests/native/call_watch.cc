// The call monitor.

#include "ffi/runtime/call_watch.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ffi/bind/watch_dict.h"
#include "tests/native/binding.h"
#include "tests/native/recorded_call.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace optireduce::testing {
namespace {

void Bind(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<CallWatch>(m, "CallWatch")
      .def(
          "__init__",
          [](CallWatch* self, double stall_timeout, double unavailable_wait,
             std::uint16_t world_size) {
            new (self) CallWatch({.world_size = world_size,
                                  .stall_timeout = FromSeconds(stall_timeout),
                                  .unavailable_wait = FromSeconds(unavailable_wait)});
          },
          "stall_timeout"_a, "unavailable_wait"_a, "world_size"_a = 4)
      .def("begin",
           [](CallWatch& self, const std::string& name, std::uint32_t sequence) {
             return self.Begin(MakeCall(name, sequence, 100));
           })
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

const Binding binding(&Bind);

}  // namespace
}  // namespace optireduce::testing
