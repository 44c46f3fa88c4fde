#include <nanobind/stl/string.h>

#include <chrono>
#include <string>

#include "ffi/base/status.h"
#include "ffi/bind/module_parts.h"
#include "ffi/protocol/stats.h"
#include "ffi/sim/network.h"
#include "ffi/sim/scenario.h"
#include "ffi/sim/simulate.h"

namespace optireduce {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

nb::dict RunScenario(const std::string& line) {
  Result<Scenario> scenario = ParseScenario(line);
  if (!scenario.ok()) throw nb::value_error(scenario.status().message().c_str());
  SimulationReport report;
  {
    const nb::gil_scoped_release release;
    report = Simulate(scenario.value());
  }
  nb::dict counters;
#define OPTIREDUCE_NAME_COUNTER(name, meaning) counters[#name] = report.counters.name;
  OPTIREDUCE_COUNTERS(OPTIREDUCE_NAME_COUNTER)
#undef OPTIREDUCE_NAME_COUNTER
  nb::dict faults;
#define OPTIREDUCE_NAME_FAULT(name, meaning) faults[#name] = report.faults.name;
  OPTIREDUCE_FAULTS(OPTIREDUCE_NAME_FAULT)
#undef OPTIREDUCE_NAME_FAULT
  nb::dict result;
  result["ok"] = report.ok();
  result["failure"] = report.failure;
  result["scenario"] = Print(scenario.value());
  result["hash"] = report.hash;
  result["counters"] = counters;
  result["faults"] = faults;
  result["virtual_s"] = std::chrono::duration<double>(report.virtual_time).count();
  result["cross_traffic_part"] = report.cross_traffic_part;
  result["own_part"] = report.own_part;
  nb::list calls;
  for (const CallReport& call : report.calls) {
    nb::dict one;
    one["elapsed_s"] = std::chrono::duration<double>(call.elapsed).count();
    one["late"] = call.late;
    calls.append(one);
  }
  result["calls"] = calls;
  result["calls_s"] = std::chrono::duration<double>(report.calls_time).count();
  return result;
}

}  // namespace

void BindSimulate(nb::module_& module) {
  module.def("simulate", &RunScenario, "scenario"_a);
  module.def("scenario_fields", &DescribeScenarioFields);
}

}  // namespace optireduce
