#include "ffi/sim/simulate.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/base/prng.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/sim/call_parts.h"
#include "ffi/sim/checker.h"
#include "ffi/sim/event_queue.h"
#include "ffi/sim/programs.h"
#include "ffi/sim/setup.h"
#include "ffi/sim/trace.h"
#include "ffi/sim/workload.h"

namespace optireduce {
namespace {

using std::chrono::microseconds;

// Chosen: a timer may be spurious occasionally; this many in a row, with no datagram sent or
// received and no call ended in between, are a spin.
constexpr int kIdleTimersMax = 200;
// Interval of a blocked driver, for which the endpoint's timeouts may include data that waits to be
// sent. Chosen: short against all timeouts.
constexpr Duration kBlockedInterval = microseconds(100);
// Chosen: one delivery in 64 is followed by a timeout that was not requested.
constexpr std::uint64_t kSpuriousOneIn = 64;
// Datagrams that wait for a frozen process. Chosen: a small socket buffer, so that some do not fit.
constexpr std::size_t kHeldMax = 64;

// X(name, text): events of a rank. Events up to kCancel are actions of the rank itself.
#define OPTIREDUCE_SIM_EVENTS(X)      \
  X(kCall, "is at a call of chain")   \
  X(kTimer, "wakes")                  \
  X(kRoom, "may send again")          \
  X(kLeave, "leaves")                 \
  X(kCancel, "cancels its calls")     \
  X(kStop, "stops")                   \
  X(kCut, "is cut off")               \
  X(kMend, "is connected again")      \
  X(kFreeze, "stands still")          \
  X(kUnfreeze, "goes on")             \
  X(kMtu, "sees long datagrams lost") \
  X(kPart, "sees the network part")   \
  X(kMeet, "sees the network whole")  \
  X(kLaneCut, "loses a lane")         \
  X(kLaneMend, "has its lane again")

class Simulation {
 public:
  Simulation(const Scenario& scenario, std::ostream* trace);
  SimulationReport Run();

 private:
  enum class EventKind : std::uint8_t {
#define OPTIREDUCE_DECLARE_EVENT(name, text) name,
    OPTIREDUCE_SIM_EVENTS(OPTIREDUCE_DECLARE_EVENT)
#undef OPTIREDUCE_DECLARE_EVENT
  };
  static std::string_view NameOf(EventKind kind);
  struct Event {
    EventKind kind;
    Rank rank;              // the node, if the kind is kTimer or kRoom
    std::size_t chain = 0;  // the chain, if the kind is kCall
  };
  // A datagram in the buffer of a socket.
  struct Held {
    Arrival delivery;
    std::vector<std::byte> bytes;
  };
  // One lane of a rank: its endpoint, and the driver between endpoint and network.
  struct Host {
    std::unique_ptr<Endpoint> endpoint;
    std::vector<std::byte> buffer;
    std::optional<Transmit> refused;   // waiting for room
    std::vector<std::byte> datagrams;  // the bytes of `refused`
    bool blocked = false;
    bool silent = false;  // stopped, or its process has ended
    bool leaving = false;
    Instant timer = kNever;  // the endpoint's PollTimeout()
    Instant wakes = kNever;  // time of the next kTimer
    int idle_timers = 0;
    bool frozen = false;
    std::vector<Held> held;  // arrived while it was frozen
  };

  Host& host(Rank node) { return hosts_[node.index()]; }
  // Calls `visit(node)` for each lane of the rank.
  template <typename Visit>
  void ForEachLane(Rank rank, Visit visit) {
    for (std::uint64_t lane = 0; lane < scenario_.lanes; ++lane) {
      visit(NodeOf(scenario_, rank, lane));
    }
  }
  Duration Random(std::uint64_t most_us) { return Microseconds(prng_.Below(most_us + 1)); }

  void PlanFaults();
  bool Step();
  void HandleEvent(const Event& event);
  void NarrowPaths(Rank rank);
  void Part();
  void HandleDelivery(const Arrival& delivery);
  void Receive(const Arrival& delivery);
  void Unfreeze(Rank node);
  void HandleTimer(Rank node);
  void MakeCall(Rank rank, std::size_t chain);
  void Submit(Rank rank, std::size_t chain, const Submission& submission, std::string_view act);
  void GiveUpCall(Rank rank, std::size_t chain, SimCall call);
  void LeaveNow(Rank rank, const Status& why);
  // Polls the endpoint's three outputs, as its contract demands.
  void Drive(Rank node);
  bool Transmits(Rank node);
  bool SendOrBlock(Rank node);
  bool TakeEvents(Rank node);
  void SetTimer(Rank node);
  // Wakes the lanes for which the lane driven last has made a timeout due.
  void WakeOtherLanes(Rank node);
  void FailRestless();
  void FinishRun();

  Scenario scenario_;
  Prng prng_;
  Workload workload_;
  Checker checker_;
  Network network_;
  std::vector<Host> hosts_;       // one for each node
  std::vector<CallParts> parts_;  // one for each rank
  EventQueue<Event> events_;
  Trace trace_;
  Programs programs_;
  Instant now_{};
  Instant last_done_{};
  std::vector<std::uint64_t> given_up_;  // calls of each collective that give_up_rank has given up
  Instant rests_by_{};                   // no event may be pending later
  std::uint64_t steps_ = 0;
  std::size_t memory_peak_bytes_ = 0;
};

Simulation::Simulation(const Scenario& scenario, std::ostream* trace)
    : scenario_(scenario),
      prng_(Mix(scenario.seed ^ 0x686F7374ull)),
      workload_(scenario),
      checker_(scenario_, workload_),
      network_(NetworkOf(scenario)),
      trace_(trace),
      programs_(scenario_, workload_, prng_, checker_, trace_,
                [this](Instant at, Rank rank, std::size_t chain) {
                  events_.Push(at, {EventKind::kCall, rank, chain});
                }) {
  hosts_.resize(scenario.ranks * scenario.lanes);
  parts_.resize(scenario.ranks, CallParts(scenario.lanes));
  given_up_.resize(workload_.collectives().size());
  for (std::uint16_t r = 0; r < scenario.ranks; ++r) {
    std::vector<std::unique_ptr<Endpoint>> endpoints = MakeEndpoints(scenario, Rank(r));
    for (std::size_t lane = 0; lane < endpoints.size(); ++lane) {
      Host& made = host(NodeOf(scenario, Rank(r), lane));
      made.endpoint = std::move(endpoints[lane]);
      made.buffer.resize(scenario.batch_max * scenario.datagram_bytes);
      made.silent = scenario.IsAbsent(Rank(r));
    }
  }
  for (const std::vector<std::byte>& datagram : ForeignDatagrams(scenario)) {
    network_.AddForeign(datagram);
  }
}

void Simulation::PlanFaults() {
  const auto plan = [this](EventKind kind, std::uint64_t at_us, std::uint64_t rank) {
    events_.Push(At(at_us), {kind, Rank(static_cast<std::uint16_t>(rank))});
  };
  const Scenario& s = scenario_;
  if (s.stop_at_us > 0) plan(EventKind::kStop, s.stop_at_us, s.stop_rank);
  if (s.leave_at_us > 0) plan(EventKind::kLeave, s.leave_at_us, s.leave_rank);
  if (s.cancel_at_us > 0) plan(EventKind::kCancel, s.cancel_at_us, s.cancel_rank);
  if (s.cut_at_us > 0) {
    plan(EventKind::kCut, s.cut_at_us, s.cut_rank);
    plan(EventKind::kMend, s.cut_at_us + s.cut_for_us, s.cut_rank);
  }
  if (s.freeze_at_us > 0) {
    plan(EventKind::kFreeze, s.freeze_at_us, s.freeze_rank);
    plan(EventKind::kUnfreeze, s.freeze_at_us + s.freeze_for_us, s.freeze_rank);
  }
  if (s.lane_cut_at_us > 0) {
    plan(EventKind::kLaneCut, s.lane_cut_at_us, s.lane_cut_rank);
    plan(EventKind::kLaneMend, s.lane_cut_at_us + s.lane_cut_for_us, s.lane_cut_rank);
  }
  if (s.mtu_at_us > 0) plan(EventKind::kMtu, s.mtu_at_us, s.mtu_rank);
  if (s.part_for_us > 0) {
    plan(EventKind::kPart, s.part_at_us, 0);
    plan(EventKind::kMeet, s.part_at_us + s.part_for_us, 0);
  }
}

SimulationReport Simulation::Run() {
  SimulationReport report;
  try {
    programs_.Start();
    PlanFaults();
    rests_by_ =
        Instant{} + TimeMax(scenario_, workload_.collectives().size()) + checker_.LivenessBound();
    while (checker_.failure().empty() && Step()) {
    }
    if (checker_.failure().empty()) FinishRun();
    report.failure = checker_.failure();
  } catch (const std::exception& error) {
    report.failure = "at " + std::to_string((now_ - Instant{}).count()) + " ns: " + error.what();
  }
  report.hash = trace_.hash();
  report.events = steps_;
  report.virtual_time = now_ - Instant{};
  report.calls_time = last_done_ - Instant{};
  report.liveness_worst = checker_.liveness_worst();
  report.memory_peak_bytes = memory_peak_bytes_;
  report.calls = programs_.CallReports();
  report.faults = network_.faults();
  const double bytes_max =
      static_cast<double>(scenario_.rate_mbps * scenario_.cross_traffic_for_us) / 8;
  report.cross_traffic_part = static_cast<double>(network_.cross_traffic_bytes()) / bytes_max;
  report.own_part = static_cast<double>(network_.bytes_beside_cross_traffic()) / bytes_max;
  for (const Host& each : hosts_) {
    const Counters& counters = each.endpoint->counters();
#define OPTIREDUCE_ADD_COUNTER(name, meaning) report.counters.name += counters.name;
    OPTIREDUCE_COUNTERS(OPTIREDUCE_ADD_COUNTER)
#undef OPTIREDUCE_ADD_COUNTER
  }
  return report;
}

bool Simulation::Step() {
  const Instant next = std::min(events_.next(), network_.next());
  if (next == kNever) return false;
  now_ = next;
  if (++steps_ > EventsMax(scenario_) || now_ > rests_by_) {
    FailRestless();
    return false;
  }
  // At equal times events of the ranks come first; any fixed order would do.
  if (events_.next() <= network_.next()) {
    HandleEvent(events_.Pop());
  } else if (const std::optional<Arrival> delivery = network_.Step()) {
    HandleDelivery(*delivery);
  }
  if (!network_.IsConserved()) checker_.Fail(now_, Rank(0), "the network has lost count");
  return true;
}

std::string_view Simulation::NameOf(EventKind kind) {
  switch (kind) {
#define OPTIREDUCE_NAME_EVENT(name, text) \
  case EventKind::name:                   \
    return text;
    OPTIREDUCE_SIM_EVENTS(OPTIREDUCE_NAME_EVENT)
#undef OPTIREDUCE_NAME_EVENT
  }
  FailCheck("known event kind", __FILE__, __LINE__);
}

void Simulation::HandleEvent(const Event& event) {
  trace_.Act(now_, event.rank, NameOf(event.kind), event.chain);
  if (host(event.rank).silent && event.kind < EventKind::kMtu) return;  // no fault of the network
  if (host(event.rank).frozen && event.kind <= EventKind::kCancel) {
    events_.Push(At(scenario_.freeze_at_us + scenario_.freeze_for_us), event);
    return;
  }
  switch (event.kind) {
    case EventKind::kCall:
      return MakeCall(event.rank, event.chain);
    case EventKind::kTimer:
      return HandleTimer(event.rank);
    case EventKind::kRoom:
      host(event.rank).blocked = false;
      return Drive(event.rank);
    case EventKind::kStop:
      checker_.Stopped(now_, event.rank);
      ForEachLane(event.rank, [&](Rank node) { host(node).silent = true; });
      return programs_.Stop(event.rank);
    case EventKind::kCancel:
      checker_.Cancelled(now_, event.rank);
      return ForEachLane(event.rank, [&](Rank node) {
        host(node).endpoint->Cancel(now_, {StatusCode::kCancelled, std::string(kInterrupted)});
        Drive(node);
      });
    case EventKind::kCut:
    case EventKind::kMend:
      return ForEachLane(event.rank,
                         [&](Rank node) { network_.SetCut(node, event.kind == EventKind::kCut); });
    case EventKind::kLeave:
      return LeaveNow(event.rank, {StatusCode::kCancelled, "it was told to leave"});
    case EventKind::kFreeze:
      return ForEachLane(event.rank, [&](Rank node) { host(node).frozen = true; });
    case EventKind::kUnfreeze:
      return ForEachLane(event.rank, [&](Rank node) { Unfreeze(node); });
    case EventKind::kMtu:
      return NarrowPaths(event.rank);
    case EventKind::kPart:
      return Part();
    case EventKind::kMeet:
      return network_.Part({}, scenario_.part_one_way != 0);
    case EventKind::kLaneCut:
    case EventKind::kLaneMend:
      return network_.SetCut(NodeOf(scenario_, event.rank, scenario_.lane_cut_lane),
                             event.kind == EventKind::kLaneCut);
  }
}

void Simulation::NarrowPaths(Rank rank) {
  const Scenario& s = scenario_;
  for (std::uint64_t lane = 0; lane < s.lanes; ++lane) {
    const Rank node = NodeOf(s, rank, lane);
    if (s.mtu_to < s.ranks) {
      const Rank to(static_cast<std::uint16_t>(s.mtu_to));
      network_.SetPathMtu(node, NodeOf(s, to, lane), s.mtu_bytes);
    } else {
      network_.SetMtu(node, s.mtu_bytes, s.mtu_one_way != 0);
    }
  }
}

void Simulation::Part() {
  std::vector<bool> side(hosts_.size());
  for (std::size_t node = 0; node < side.size(); ++node) {
    side[node] = (scenario_.part_side >> node % scenario_.ranks & 1) != 0;
  }
  network_.Part(std::move(side), scenario_.part_one_way != 0);
}

void Simulation::Unfreeze(Rank node) {
  Host& unfrozen = host(node);
  unfrozen.frozen = false;
  // The timeout may be handled before the datagrams that have arrived meanwhile.
  if (prng_.Below(2) == 0) {
    unfrozen.endpoint->HandleTimeout(now_);
    Drive(node);
  }
  for (Held& held : std::exchange(unfrozen.held, {})) {
    held.delivery.datagram = held.bytes;
    Receive(held.delivery);
  }
}

void Simulation::HandleDelivery(const Arrival& delivery) {
  trace_.Datagram(now_, delivery.to, "gets from", delivery.from, delivery.datagram);
  Host& to = host(delivery.to);
  if (!to.frozen) return Receive(delivery);
  if (to.held.size() >= kHeldMax) return;
  to.held.push_back(
      {.delivery = delivery, .bytes = {delivery.datagram.begin(), delivery.datagram.end()}});
}

void Simulation::Receive(const Arrival& delivery) {
  Host& to = host(delivery.to);
  if (to.silent) return;
  to.idle_timers = 0;
  to.endpoint->HandleDatagram(now_, delivery.datagram);
  checker_.Delivered(now_, delivery, to.endpoint->counters());
  if (prng_.Below(kSpuriousOneIn) == 0) to.endpoint->HandleTimeout(now_);
  Drive(delivery.to);
}

// ---------------------------------------------------------------------------------- calls

void Simulation::MakeCall(Rank rank, std::size_t chain) {
  const std::optional<SimCall> call = programs_.NextCall(rank, chain);
  if (!call) return;
  if (const auto until = HangsUntil(scenario_, now_, rank)) {
    return events_.Push(*until, {EventKind::kCall, rank, chain});
  }
  const Scenario& s = scenario_;
  const bool gives_up =
      s.give_up_at_us > 0 && rank.value() == s.give_up_rank && now_ >= At(s.give_up_at_us);
  if (gives_up && given_up_[call->collective]++ < s.give_up_calls) {
    return GiveUpCall(rank, chain, *call);
  }
  Submit(rank, chain, checker_.Begin(now_, rank, *call), "submits");
  ForEachLane(rank, [&](Rank node) { Drive(node); });
}

void Simulation::Submit(Rank rank, std::size_t chain, const Submission& submission,
                        std::string_view act) {
  const std::uint64_t token = submission.token;
  trace_.Act(now_, rank, act, token, submission.spec.description);
  // An error if no lane accepts its part. An error of a single lane becomes the call's, after the
  // end of all parts.
  Status status;
  std::size_t taken = 0;
  std::vector<CallDone> refused;
  for (BucketPart& part : parts_[rank.index()].Cut(submission)) {
    const std::uint64_t part_token = part.submission.token;
    Endpoint& endpoint = *host(NodeOf(scenario_, rank, part.lane)).endpoint;
    const Status of_part = endpoint.Submit(now_, std::move(part.submission));
    ++taken;
    if (of_part.ok()) continue;
    --taken;
    status = of_part;
    refused.push_back({.token = part_token, .status = of_part, .stats = {}});
  }
  if (taken > 0) {
    if (!refused.empty()) checker_.PartlyRefused(token);
    status = {};
  }
  for (const CallDone& part : refused) parts_[rank.index()].End(part);
  checker_.Submitted(now_, token, status);
  if (const auto why = programs_.Submitted(now_, rank, chain, token, status)) LeaveNow(rank, *why);
}

void Simulation::GiveUpCall(Rank rank, std::size_t chain, SimCall call) {
  const Status why(StatusCode::kCancelled, std::string(kInterrupted));
  Submission submission = checker_.Begin(now_, rank, call);
  checker_.GaveUp(now_, rank, call);
  if (prng_.Below(2) == 0) {
    // Submits the call together with the cancellation.
    Submit(rank, chain, submission, "gives up");
    ForEachLane(rank, [&](Rank node) { host(node).endpoint->Cancel(now_, why); });
  } else {
    trace_.Act(now_, rank, "gives up", submission.token, submission.spec.description);
    submission.leaves.clear();
    for (BucketPart& part : CutBucket(submission, scenario_.lanes, kSimCutBytesMin)) {
      Endpoint& endpoint = *host(NodeOf(scenario_, rank, part.lane)).endpoint;
      endpoint.GiveUp(now_, std::move(part.submission), why);
    }
    if (const auto leaves = programs_.GaveUp(now_, rank, chain)) LeaveNow(rank, *leaves);
  }
  ForEachLane(rank, [&](Rank node) { Drive(node); });
}

// The end of a call, as the trace shows it.
static std::string Describe(const CallStats& stats) {
  return "call " + std::to_string(stats.number.value()) + ", skipped " +
         std::to_string(stats.skipped) + ", missing contributions " +
         std::to_string(stats.missing_contributions) + ", results " +
         std::to_string(stats.missing_results) + (stats.passed ? ", passed" : "");
}

bool Simulation::TakeEvents(Rank node) {
  const Rank rank = RankOf(scenario_, node);
  CallParts& parts = parts_[rank.index()];
  bool any = false;
  while (const std::optional<CallDone> part = host(node).endpoint->PollEvent()) {
    any = true;
    const bool ok = part->status.ok();
    trace_.Act(now_, node, ok ? "completes" : "fails", part->token,
               ok ? Describe(part->stats) : part->status.message());
    checker_.PartDone(now_, rank, LaneOf(scenario_, node), parts.CallOf(part->token), *part);
    if (!checker_.failure().empty()) break;
    const std::optional<CallDone> done = parts.End(*part);
    if (!done) continue;
    checker_.Done(now_, rank, *done);
    last_done_ = now_;
    if (const auto why = programs_.Done(now_, rank, *done)) LeaveNow(rank, *why);
  }
  if (any) programs_.RepeatDrains(now_);
  return any;
}

void Simulation::LeaveNow(Rank rank, const Status& why) {
  // The flag of the first lane represents all lanes.
  if (std::exchange(host(rank).leaving, true)) return;
  checker_.Left(now_, rank);
  ForEachLane(rank, [&](Rank node) {
    host(node).leaving = true;
    host(node).endpoint->Leave(now_, why);
  });
  programs_.Stop(rank);
  ForEachLane(rank, [&](Rank node) { Drive(node); });
}

// ---------------------------------------------------------------------------------- the driver

void Simulation::Drive(Rank node) {
  Host& driven = host(node);
  if (driven.silent) return;
  bool more = true;
  while (more && checker_.failure().empty()) {
    more = Transmits(node);
    more = TakeEvents(node) || more;
    if (more) driven.idle_timers = 0;
  }
  WakeOtherLanes(node);
  if (driven.silent) return;
  checker_.Driven(now_, node, *driven.endpoint);
  memory_peak_bytes_ = std::max(memory_peak_bytes_, driven.endpoint->memory_bytes());
  if (driven.leaving && !driven.refused && driven.endpoint->finished()) {
    driven.silent = true;  // its process exits
    return;
  }
  SetTimer(node);
}

bool Simulation::Transmits(Rank node) {
  Host& sender = host(node);
  bool any = false;
  while (!sender.blocked) {
    if (!sender.refused) {
      const std::size_t batch_max = 1 + prng_.Below(scenario_.batch_max);
      sender.refused = sender.endpoint->PollTransmit(
          now_, std::span(sender.buffer).first(batch_max * scenario_.datagram_bytes), batch_max);
      if (!sender.refused) break;
      Join(sender.refused->pieces, sender.datagrams);
      checker_.Polled(now_, node, *sender.refused, batch_max);
      if (!checker_.failure().empty()) break;
    }
    any = true;
    if (!SendOrBlock(node)) break;
  }
  return any;
}

bool Simulation::SendOrBlock(Rank node) {
  Host& sender = host(node);
  const Transmit transmit = *sender.refused;
  const Rank to = NodeOf(scenario_, transmit.to, LaneOf(scenario_, node));
  const std::size_t datagrams =
      (transmit.bytes + transmit.datagram_bytes - 1) / transmit.datagram_bytes;
  std::optional<Instant> room_at;
  if (prng_.Chance(static_cast<std::uint32_t>(scenario_.refuse_ppm))) {
    room_at = now_ + Duration(1) + Random(scenario_.refuse_us);
  } else if (scenario_.unaware == 0 && !network_.HasRoom(now_, node, transmit.bytes, datagrams)) {
    room_at = network_.RoomAt(now_, node, transmit.bytes, datagrams) + Duration(1);
  }
  if (room_at) {
    sender.blocked = true;
    events_.Push(*room_at, {EventKind::kRoom, node});
    return false;
  }
  for (std::size_t at = 0; at < transmit.bytes; at += transmit.datagram_bytes) {
    const std::size_t bytes = std::min(transmit.datagram_bytes, transmit.bytes - at);
    const std::span<const std::byte> datagram = std::span(sender.datagrams).subspan(at, bytes);
    trace_.Datagram(now_, node, "sends to", to, datagram);
    network_.Send(now_, node, to, datagram);
  }
  sender.refused.reset();
  return true;
}

void Simulation::SetTimer(Rank node) {
  Host& driven = host(node);
  driven.timer = driven.endpoint->PollTimeout();
  if (driven.timer == kNever) return;
  if (driven.timer <= now_ && driven.blocked) driven.timer = now_ + kBlockedInterval;
  // An earlier wake-up checks again; a later one is redundant and harmless.
  const Instant wakes = std::max(driven.timer, now_) + Random(scenario_.timer_late_us);
  if (wakes >= driven.wakes) return;
  driven.wakes = wakes;
  events_.Push(wakes, {EventKind::kTimer, node});
}

void Simulation::HandleTimer(Rank node) {
  Host& driven = host(node);
  // A redundant wake-up, overtaken by an earlier one.
  if (now_ < driven.wakes) return;
  driven.wakes = kNever;
  if (driven.timer > now_ && !driven.blocked) return SetTimer(node);
  if (++driven.idle_timers > kIdleTimersMax && !driven.blocked) {
    checker_.Fail(now_, RankOf(scenario_, node),
                  "its timeouts come again and again without any progress");
  }
  driven.endpoint->HandleTimeout(now_);
  Drive(node);
}

void Simulation::WakeOtherLanes(Rank node) {
  if (scenario_.lanes == 1) return;
  ForEachLane(RankOf(scenario_, node), [&](Rank other) {
    const bool due = other != node && host(other).endpoint->PollTimeout() <= now_;
    if (due && !host(other).silent && !host(other).frozen) SetTimer(other);
  });
}

// ---------------------------------------------------------------------------------- the end

void Simulation::FailRestless() {
  if (now_ <= rests_by_) {
    checker_.Fail(now_, Rank(0),
                  "the run has more than " + std::to_string(EventsMax(scenario_)) +
                      " events: it repeats itself, or EventsMax() is too low for it");
  }
  checker_.FailOpenCalls(now_);
  for (std::uint16_t node = 0; node < hosts_.size(); ++node) {
    const Host& each = host(Rank(node));
    const Rank rank = RankOf(scenario_, Rank(node));
    if (each.silent || each.timer == kNever) continue;
    checker_.Fail(now_, rank,
                  std::string("it does not come to rest, though every call ended") +
                      (each.leaving ? "; it is leaving" : ""));
  }
  checker_.Fail(now_, Rank(0), "the run does not come to an end");
}

void Simulation::FinishRun() {
  for (std::uint16_t node = 0; node < hosts_.size(); ++node) {
    const Host& each = host(Rank(node));
    const Rank rank = RankOf(scenario_, Rank(node));
    // Ranks that disagree and stay retain data that peers sent for calls that they never make.
    if (each.silent || scenario_.mismatch != 0) continue;
    // Deferred data remains if a program has ended without its drain.
    if (scenario_.loses_data() && !(scenario_.goes_on() && !scenario_.IsRemovable(rank))) {
      continue;
    }
    if (each.endpoint->memory_bytes() != 0) {
      checker_.Fail(now_, rank,
                    "it holds " + std::to_string(each.endpoint->memory_bytes()) +
                        " bytes though nothing is pending");
    }
    if (!each.endpoint->FindLateData().empty()) {
      checker_.Fail(now_, rank, "it says that data is late though all was drained");
    }
  }
  checker_.Finish(now_, network_);
}

}  // namespace

SimulationReport Simulate(const Scenario& scenario, std::ostream* trace) {
  return Simulation(scenario, trace).Run();
}

}  // namespace optireduce
