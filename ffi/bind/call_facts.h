// The facts about a call that C++ and Python share: modes, wire formats, statistics, names, drains,
// tokens.
// This is their only definition; Python reads them from the extension module.

#ifndef FFI_BIND_CALL_FACTS_H_
#define FFI_BIND_CALL_FACTS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/submission.h"
#include "ffi/runtime/device_rendezvous.h"

namespace optireduce {

// Longest name of a collective, in bytes, that a program may give.
// Chosen: with the number of the group, which the process adds, the name stays within
// kWireNameBytesMax.
inline constexpr std::size_t kNameBytesMax = 160;

// Numbers of the attribute `drain` of a call; any other is an ordinary call.
inline constexpr std::int64_t kDrainOfCalls = 1;
inline constexpr std::int64_t kDrainOfCallsIfAny = 2;

// The attribute `group_processes` of a call over replicas: in place of a process, each process of
// the session has a device with this rank.
inline constexpr std::int32_t kEachProcess = -1;

// Elements of the token of a begun call, s32: the session, the collective (the attribute `salt`),
// the number of the call among the begun ones of its device, the step (-1: the call was counted).
// Equal on all devices of a call. All elements 0: the token of no call.
inline constexpr std::size_t kTokenElements = 4;

struct Mode {
  std::string_view name;
  LatePolicy reduce_scatter;
  LatePolicy all_gather;
};

inline constexpr std::array<Mode, 4> kModes = {{
    {"exact", LatePolicy::kWait, LatePolicy::kWait},
    {"agreed", LatePolicy::kDefer, LatePolicy::kWait},
    {"bounded", LatePolicy::kDefer, LatePolicy::kDefer},
    {"lossy", LatePolicy::kDrop, LatePolicy::kDrop},
}};

// The stages of a collective, by the attribute `operation` of a call.
struct Operation {
  std::string_view name;
  bool reduce_scatter;
  bool all_gather;
};

inline constexpr std::array<Operation, 3> kOperations = {{
    {"allreduce", true, true},
    {"reduce_scatter", true, false},
    {"all_gather", false, true},
}};

// True if data may be in flight after a call in this mode, to join a later call.
constexpr bool Defers(const Mode& mode) {
  return mode.reduce_scatter == LatePolicy::kDefer || mode.all_gather == LatePolicy::kDefer;
}

// The inputs of a call's statistics.
struct CallReport {
  const DeviceResult& result;
  std::size_t processes = 0;  // size of the group
};

// An element of the float array that is the last result of the allreduce.
struct Statistic {
  std::string_view name;
  double (*value)(const CallReport& report);
};

// A member of CallStats as a number; a time in seconds.
template <auto kMember>
double StatOf(const CallReport& of) {
  const auto& value = of.result.stats.*kMember;
  using Value = std::remove_cvref_t<decltype(value)>;
  if constexpr (std::is_same_v<Value, Duration>) {
    return std::chrono::duration<double>(value).count();
  } else if constexpr (std::is_same_v<Value, Rank>) {
    return static_cast<double>(value.value());
  } else {
    return static_cast<double>(value);
  }
}

// The statistics in order of position. Units and meanings are those of CollectiveStats in
// jax_optireduce/_stats.py; "processes" is for the mean over live ranks, "passed" for ranks that
// are behind.
inline constexpr std::array<Statistic, 15> kStatistics = {{
    {"missing_contributions", &StatOf<&CallStats::missing_contributions>},
    {"missing_results", &StatOf<&CallStats::missing_results>},
    {"elapsed_s", &StatOf<&CallStats::elapsed>},
    {"retransmitted", &StatOf<&CallStats::retransmitted>},
    {"late", &StatOf<&CallStats::late>},
    {"slowest_process", &StatOf<&CallStats::slowest>},
    {"sequence",
     [](const CallReport& of) { return static_cast<double>(of.result.sequence.value()); }},
    {"deferred", &StatOf<&CallStats::deferred>},
    {"deadline_s", &StatOf<&CallStats::deadline>},
    {"in_flight", &StatOf<&CallStats::in_flight>},
    {"live_processes", &StatOf<&CallStats::live>},
    {"skipped", &StatOf<&CallStats::skipped>},
    {"rounded", &StatOf<&CallStats::rounded>},
    {"processes", [](const CallReport& of) { return static_cast<double>(of.processes); }},
    {"passed", &StatOf<&CallStats::passed>},
}};

}  // namespace optireduce

#endif  // FFI_BIND_CALL_FACTS_H_
