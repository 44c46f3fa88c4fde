// The flight record and the events of a communicator as Python objects. Fields and units of a call
// are those of jax_optireduce.Communicator.flight_record(), those of events are in _native.pyi.

#ifndef FFI_BIND_EVENT_DICT_H_
#define FFI_BIND_EVENT_DICT_H_

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/runtime/call_monitor.h"
#include "ffi/runtime/collective_totals.h"
#include "ffi/runtime/flight_recorder.h"
#include "ffi/runtime/late_share.h"
#include "ffi/runtime/short_deadline.h"
#include "ffi/runtime/slow_rank.h"

namespace optireduce {

inline const char* NameOf(Cause cause) {
  switch (cause) {
    case Cause::kOther:
      return "other";
    case Cause::kPeerLost:
      return "peer lost";
    case Cause::kPathTooSmall:
      return "path too small";
    case Cause::kDisagreement:
      return "disagreement";
    case Cause::kCallTimeout:
      return "call timeout";
    case Cause::kCancelled:
      return "cancelled";
  }
  return "";
}

inline const char* NameOf(CallRecord::State state) {
  switch (state) {
    case CallRecord::State::kUnderWay:
      return "under way";
    case CallRecord::State::kDone:
      return "done";
    case CallRecord::State::kFailed:
      return "failed";
  }
  return "";
}

// ---- Single values.

inline nanobind::object ToObject(nanobind::object made) { return made; }
template <typename T>
  requires std::is_arithmetic_v<T>
nanobind::object ToObject(T number) {
  return nanobind::cast(number);
}
inline nanobind::object ToObject(const char* literal) { return nanobind::str(literal); }
// Texts come from programs and peers: invalid UTF-8 must not raise here.
inline nanobind::object ToObject(const std::string& text) {
  return nanobind::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}
// Seconds.
inline nanobind::object ToObject(Duration duration) {
  return nanobind::float_(std::chrono::duration<double>(duration).count());
}
inline nanobind::object ToObject(Rank rank) { return nanobind::int_(rank.value()); }
inline nanobind::object ToObject(Sequence sequence) { return nanobind::int_(sequence.value()); }
inline nanobind::object ToObject(const PeerArrival& arrival) {
  nanobind::list pair;
  pair.append(ToObject(arrival.rank));
  pair.append(ToObject(arrival.at));
  return pair;
}

// ---- Lists and dictionaries.

template <std::ranges::range Range>
nanobind::list ToList(const Range& values) {
  nanobind::list list;
  for (const auto& value : values) list.append(ToObject(value));
  return list;
}
template <typename T>
nanobind::object ToObject(const std::vector<T>& values) {
  return ToList(values);
}

struct Field {
  template <typename T>
  Field(const char* field, const T& of) : name(field), value(ToObject(of)) {}

  const char* name;
  nanobind::object value;
};

inline nanobind::dict ToDict(std::initializer_list<Field> fields) {
  nanobind::dict named;
  for (const Field& field : fields) named[field.name] = field.value;
  return named;
}

// ---- Records and events.

inline nanobind::object ToObject(const CallRecord& record) {
  const CallStats& stats = record.stats;
  // An open call, or one that failed before it reached the network, has no slowest rank.
  const bool slowest = stats.elapsed > Duration::zero();
  return ToDict({{"number", record.number},
                 {"collective", record.collective},
                 {"sequence", record.sequence},
                 {"description", record.description},
                 {"bytes", record.bytes},
                 {"started_unix_s", record.started_unix},
                 {"started_monotonic_s", record.started.time_since_epoch()},
                 {"state", NameOf(record.state)},
                 {"elapsed_s", record.elapsed},
                 {"error", record.error},
                 {"missing_contributions", stats.missing_contributions},
                 {"missing_results", stats.missing_results},
                 {"retransmitted", stats.retransmitted},
                 {"late", stats.late},
                 {"slowest_process", slowest ? int{stats.slowest.value()} : -1},
                 {"behind_s", stats.behind},
                 {"arrivals", ToList(stats.arrivals.Values())},
                 {"waiting_for", record.waiting_for},
                 {"absent", record.absent}});
}

inline nanobind::object ToObject(const CallTotals& totals) {
  std::vector<Duration> ends;
  for (std::size_t bin = 0; bin + 1 < kDurationBins; ++bin) ends.push_back(DurationBinEnd(bin));
  return ToDict({{"calls", ToList(totals.calls)},
                 {"durations_s", ends},
                 {"elapsed_s", totals.elapsed},
                 {"bytes", totals.bytes},
                 {"missing_contributions", totals.missing_contributions}});
}

// The values by name.
template <typename Value>
nanobind::dict ToDict(const std::vector<std::pair<std::string, Value>>& values) {
  nanobind::dict named;
  for (const auto& [name, value] : values) named[ToObject(name)] = ToObject(value);
  return named;
}

inline nanobind::object ToObject(const SlowRankEvent& event) {
  return ToDict({{"kind", event.recovered ? "recovered" : "slow"},
                 {"rank", event.rank},
                 {"collective", event.collective},
                 {"calls", event.calls},
                 {"waited", event.waited},
                 {"absent", event.absent},
                 {"behind_s", event.behind},
                 {"elapsed_s", event.elapsed}});
}

inline nanobind::object ToObject(const ShortDeadlineEvent& event) {
  return ToDict({{"kind", "short deadline"},
                 {"collective", event.collective},
                 {"calls", event.calls},
                 {"late", event.late},
                 {"needed_s", event.needed},
                 {"suggested_s", event.suggested}});
}

inline nanobind::object ToObject(const LateShareEvent& event) {
  return ToDict({{"kind", "late share"},
                 {"collective", event.collective},
                 {"calls", event.calls},
                 {"late", event.late}});
}

inline nanobind::object ToObject(const StallEvent& event) {
  return ToDict({{"kind", "stall"}, {"call", event.call}, {"others", event.others}});
}

inline nanobind::object ToObject(const RemovalEvent& event) {
  return ToDict(
      {{"kind", "removed"}, {"ranks", event.ranks}, {"live", event.live}, {"path", event.path}});
}

inline nanobind::object ToObject(const LoneCall& event) {
  return ToDict({{"kind", "lone call"},
                 {"rank", event.rank},
                 {"call", event.call},
                 {"elsewhere", event.elsewhere},
                 {"waited_s", event.waited},
                 {"limit_s", event.limit}});
}

inline nanobind::object ToObject(const DevicesEvent& event) {
  return ToDict({{"kind", "devices"},
                 {"collective", event.collective},
                 {"sequence", event.sequence},
                 {"started", event.started},
                 {"missing", event.missing},
                 {"elapsed_s", event.elapsed},
                 {"others", event.others}});
}

// The event, or None.
template <typename Event>
nanobind::object ToObject(const std::optional<Event>& event) {
  return event ? ToObject(*event) : nanobind::none();
}
inline nanobind::object ToObject(const MonitorEvent& event) {
  return std::visit([](const auto& which) { return ToObject(which); }, event);
}

}  // namespace optireduce

#endif  // FFI_BIND_EVENT_DICT_H_
