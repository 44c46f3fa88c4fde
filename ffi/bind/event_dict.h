// The flight record and the events of a communicator as Python dictionaries. Fields and units of a
// call are those of jax_optireduce.Communicator.flight_record(), those of events are in
// _native.pyi.

#ifndef FFI_BIND_EVENT_DICT_H_
#define FFI_BIND_EVENT_DICT_H_

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
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

inline double ToSeconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

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

// Texts come from programs and peers: invalid UTF-8 must not raise here.
inline nanobind::object ToText(const std::string& text) {
  return nanobind::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

inline nanobind::list ToList(const std::vector<Rank>& ranks) {
  nanobind::list list;
  for (const Rank rank : ranks) list.append(static_cast<int>(rank.value()));
  return list;
}

inline nanobind::list ToList(const std::vector<std::uint32_t>& ranks) {
  nanobind::list list;
  for (const std::uint32_t rank : ranks) list.append(rank);
  return list;
}

inline nanobind::list ToList(const LastArrivals& arrivals) {
  nanobind::list list;
  for (const PeerArrival& arrival : arrivals.Values()) {
    nanobind::list pair;
    pair.append(static_cast<int>(arrival.rank.value()));
    pair.append(ToSeconds(arrival.at));
    list.append(pair);
  }
  return list;
}

inline nanobind::dict ToDict(const CallRecord& record) {
  // An open call, or one that failed before it reached the network, has no slowest rank.
  const bool slowest = record.stats.elapsed > Duration::zero();
  nanobind::dict named;
  named["number"] = record.number;
  named["collective"] = ToText(record.collective);
  named["sequence"] = record.sequence.value();
  named["description"] = ToText(record.description);
  named["bytes"] = record.bytes;
  named["started_unix_s"] = ToSeconds(record.started_unix);
  named["started_monotonic_s"] = ToSeconds(record.started.time_since_epoch());
  named["state"] = NameOf(record.state);
  named["elapsed_s"] = ToSeconds(record.elapsed);
  named["error"] = ToText(record.error);
  named["missing_contributions"] = record.stats.missing_contributions;
  named["missing_results"] = record.stats.missing_results;
  named["retransmitted"] = record.stats.retransmitted;
  named["late"] = record.stats.late;
  named["slowest_process"] = slowest ? static_cast<int>(record.stats.slowest.value()) : -1;
  named["behind_s"] = ToSeconds(record.stats.behind);
  named["arrivals"] = ToList(record.stats.arrivals);
  named["waiting_for"] = ToList(record.waiting_for);
  named["absent"] = ToList(record.absent);
  return named;
}

inline nanobind::list ToList(const std::vector<CallRecord>& records) {
  nanobind::list list;
  for (const CallRecord& record : records) list.append(ToDict(record));
  return list;
}

inline nanobind::dict ToDict(const CallTotals& totals) {
  nanobind::list ends;
  for (std::size_t bin = 0; bin + 1 < kDurationBins; ++bin) {
    ends.append(ToSeconds(DurationBinEnd(bin)));
  }
  nanobind::list calls;
  for (const std::uint64_t number : totals.calls) calls.append(number);
  nanobind::dict named;
  named["calls"] = calls;
  named["durations_s"] = ends;
  named["elapsed_s"] = ToSeconds(totals.elapsed);
  named["bytes"] = totals.bytes;
  named["missing_contributions"] = totals.missing_contributions;
  return named;
}

inline nanobind::dict ToDict(const std::vector<std::pair<std::string, CallTotals>>& totals) {
  nanobind::dict named;
  for (const auto& [collective, of_calls] : totals) named[ToText(collective)] = ToDict(of_calls);
  return named;
}

inline nanobind::dict ToDict(const SlowRankEvent& event) {
  nanobind::dict named;
  named["kind"] = event.recovered ? "recovered" : "slow";
  named["rank"] = static_cast<int>(event.rank.value());
  named["collective"] = ToText(event.collective);
  named["calls"] = event.calls;
  named["waited"] = event.waited;
  named["absent"] = event.absent;
  named["behind_s"] = ToSeconds(event.behind);
  named["elapsed_s"] = ToSeconds(event.elapsed);
  return named;
}

inline nanobind::dict ToDict(const ShortDeadlineEvent& event) {
  nanobind::dict named;
  named["kind"] = "short deadline";
  named["collective"] = ToText(event.collective);
  named["calls"] = event.calls;
  named["late"] = event.late;
  named["needed_s"] = ToSeconds(event.needed);
  named["suggested_s"] = ToSeconds(event.suggested);
  return named;
}

inline nanobind::dict ToDict(const LateShareEvent& event) {
  nanobind::dict named;
  named["kind"] = "late share";
  named["collective"] = ToText(event.collective);
  named["calls"] = event.calls;
  named["late"] = event.late;
  return named;
}

inline nanobind::dict ToDict(const StallEvent& event) {
  nanobind::dict named;
  named["kind"] = "stall";
  named["call"] = ToDict(event.call);
  named["others"] = event.others;
  return named;
}

inline nanobind::dict ToDict(const RemovalEvent& event) {
  nanobind::dict named;
  named["kind"] = "removed";
  named["ranks"] = ToList(event.ranks);
  named["live"] = event.live;
  named["path"] = ToText(event.path);
  return named;
}

inline nanobind::dict ToDict(const LoneCall& event) {
  nanobind::dict named;
  named["kind"] = "lone call";
  named["rank"] = static_cast<int>(event.rank.value());
  named["call"] = ToText(event.call);
  named["elsewhere"] = ToText(event.elsewhere);
  named["waited_s"] = ToSeconds(event.waited);
  named["limit_s"] = ToSeconds(event.limit);
  return named;
}

inline nanobind::dict ToDict(const DevicesEvent& event) {
  nanobind::dict named;
  named["kind"] = "devices";
  named["collective"] = ToText(event.collective);
  named["sequence"] = event.sequence.value();
  named["started"] = ToList(event.started);
  named["missing"] = ToList(event.missing);
  named["elapsed_s"] = ToSeconds(event.elapsed);
  named["others"] = event.others;
  return named;
}

inline nanobind::object ToObject(const std::optional<MonitorEvent>& event) {
  if (!event) return nanobind::none();
  return std::visit([](const auto& which) -> nanobind::object { return ToDict(which); }, *event);
}

}  // namespace optireduce

#endif  // FFI_BIND_EVENT_DICT_H_
