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
#include "ffi/sim/checker.h"
#include "ffi/sim/event_queue.h"
#include "ffi/sim/programs.h"
#include "ffi/sim/setup.h"
#include "ffi/sim/trace.h"
#include "ffi/sim/workload.h"

namespace optireduce {
namespace {

using std::chrono::microseconds;

// Chosen: a timer may be spurious now and then; so often in a row, with nothing sent, received or
// ended between, is a spin.
constexpr int kIdleTimersMax = 200;
// A driver that cannot send does not know which of the endpoint's timeouts are only waiting to be
// sent. Chosen: it looks again after this time.
constexpr Duration kBlockedInterval = microseconds(100);
// Chosen: one delivery in 64 is followed by a timeout that was not asked for.
constexpr std::uint64_t kSpuriousOneIn = 64;
// Datagrams that wait for a process that stands still. Chosen: a small socket buffer, so that some
// do not fit.
constexpr std::size_t kHeldMax = 64;

// X(name, text): what happens to a rank. Up to kCancel it is something that the rank does.
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
  X(kThaw, "goes on")                 \
  X(kMtu, "sees long datagrams lost") \
  X(kPart, "sees the network part")   \
  X(kMeet, "sees the network whole")

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
    Rank rank;
    std::size_t chain = 0;  // of kCall
  };
  // A datagram in the buffer of a socket.
  struct Held {
    Delivery delivery;
    std::vector<std::byte> bytes;
  };
  // One rank: its endpoint, and the driver between endpoint and network.
  struct Host {
    std::unique_ptr<Endpoint> endpoint;
    std::vector<std::byte> buffer;
    std::optional<Transmit> refused;   // waiting for room
    std::vector<std::byte> datagrams;  // of `refused`
    bool blocked = false;
    bool silent = false;  // stopped, or its process has ended
    bool leaving = false;
    Instant timer = kNever;  // when the endpoint wants to be called
    Instant wakes = kNever;  // when the next kTimer comes
    int idle_timers = 0;
    bool frozen = false;
    std::vector<Held> held;  // what came while it was frozen
  };

  Host& host(Rank rank) { return hosts_[rank.index()]; }
  Duration Random(std::uint64_t most_us) { return Microseconds(prng_.Below(most_us + 1)); }

  void PlanFaults();
  bool Step();
  void HandleEvent(const Event& event);
  void HandleDelivery(const Delivery& delivery);
  void Receive(const Delivery& delivery);
  void Thaw(Rank rank);
  void HandleTimer(Rank rank);
  void MakeCall(Rank rank, std::size_t chain);
  void LeaveNow(Rank rank, const Status& why);
  // Polls the three that come out, as the contract of the endpoint says.
  void Drive(Rank rank);
  bool Transmits(Rank rank);
  bool SendOrBlock(Rank rank);
  bool TakeEvents(Rank rank);
  void SetTimer(Rank rank);
  void FailRestless();
  void FinishRun();

  Scenario scenario_;
  Prng prng_;
  Workload workload_;
  Checker checker_;
  Network network_;
  std::vector<Host> hosts_;
  EventQueue<Event> events_;
  Trace trace_;
  Programs programs_;
  Instant now_{};
  Instant last_done_{};
  Instant rests_by_{};  // nothing may be pending later
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
  for (std::uint16_t r = 0; r < scenario.ranks; ++r) {
    Host made;
    made.endpoint = MakeEndpoint(scenario, Rank(r));
    made.buffer.resize(scenario.batch_max * scenario.datagram_bytes);
    hosts_.push_back(std::move(made));
  }
  for (const std::vector<std::byte>& datagram : ForeignDatagrams(scenario)) {
    network_.AddForeign(datagram);
  }
}

void Simulation::PlanFaults() {
  const auto plan = [this](EventKind kind, std::uint64_t at_us, std::uint64_t rank) {
    events_.Push(Instant{} + Microseconds(at_us), {kind, Rank(static_cast<std::uint16_t>(rank))});
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
    plan(EventKind::kThaw, s.freeze_at_us + s.freeze_for_us, s.freeze_rank);
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
  const double rival_bytes_max =
      static_cast<double>(scenario_.rate_mbps * scenario_.rival_for_us) / 8;
  report.rival_part = static_cast<double>(network_.rival_bytes()) / rival_bytes_max;
  report.own_part = static_cast<double>(network_.bytes_beside_rival()) / rival_bytes_max;
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
  // Of equal times the ranks come first; what matters is that it is always the same one.
  if (events_.next() <= network_.next()) {
    HandleEvent(events_.Pop());
  } else if (const std::optional<Delivery> delivery = network_.Step()) {
    HandleDelivery(*delivery);
  }
  if (!network_.Adds()) checker_.Fail(now_, Rank(0), "the network has lost count");
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
  const bool network = event.kind >= EventKind::kMtu;
  if (host(event.rank).silent && !network) return;
  if (host(event.rank).frozen && event.kind <= EventKind::kCancel) {
    events_.Push(Instant{} + Microseconds(scenario_.freeze_at_us + scenario_.freeze_for_us), event);
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
      host(event.rank).silent = true;
      return programs_.Stop(event.rank);
    case EventKind::kCancel:
      checker_.Cancelled(now_, event.rank);
      host(event.rank).endpoint->Cancel(now_, {StatusCode::kCancelled, "it was interrupted"});
      return Drive(event.rank);
    case EventKind::kCut:
      return network_.SetCut(event.rank, true);
    case EventKind::kMend:
      return network_.SetCut(event.rank, false);
    case EventKind::kLeave:
      return LeaveNow(event.rank, {StatusCode::kCancelled, "it was told to leave"});
    case EventKind::kFreeze:
      host(event.rank).frozen = true;
      return;
    case EventKind::kThaw:
      return Thaw(event.rank);
    case EventKind::kMtu:
      return network_.SetMtu(event.rank, scenario_.mtu_bytes, scenario_.mtu_one_way != 0);
    case EventKind::kPart:
      return network_.Part(scenario_.part_side, scenario_.part_one_way != 0);
    case EventKind::kMeet:
      return network_.Part(0, false);
  }
}

void Simulation::Thaw(Rank rank) {
  Host& thawed = host(rank);
  thawed.frozen = false;
  // Its watch may run before what has come in the meantime is read.
  if (prng_.Below(2) == 0) {
    thawed.endpoint->HandleTimeout(now_);
    Drive(rank);
  }
  for (Held& held : std::exchange(thawed.held, {})) {
    held.delivery.datagram = held.bytes;
    Receive(held.delivery);
  }
}

void Simulation::HandleDelivery(const Delivery& delivery) {
  trace_.Datagram(now_, delivery.to, "gets from", delivery.from, delivery.datagram);
  Host& to = host(delivery.to);
  if (!to.frozen) return Receive(delivery);
  if (to.held.size() >= kHeldMax) return;
  to.held.push_back(
      {.delivery = delivery, .bytes = {delivery.datagram.begin(), delivery.datagram.end()}});
}

void Simulation::Receive(const Delivery& delivery) {
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
  Submission submission = checker_.Begin(now_, rank, *call);
  const std::uint64_t token = submission.token;
  trace_.Act(now_, rank, "submits", token, submission.spec.description);
  const Status status = host(rank).endpoint->Submit(now_, std::move(submission));
  checker_.Submitted(now_, token, status);
  if (const auto why = programs_.Submitted(now_, rank, chain, token, status)) LeaveNow(rank, *why);
  Drive(rank);
}

bool Simulation::TakeEvents(Rank rank) {
  bool any = false;
  while (const std::optional<CallDone> done = host(rank).endpoint->PollEvent()) {
    any = true;
    trace_.Act(now_, rank, done->status.ok() ? "completes" : "fails", done->token,
               done->status.message());
    checker_.Done(now_, rank, *done);
    last_done_ = now_;
    if (const auto why = programs_.Done(now_, rank, *done)) LeaveNow(rank, *why);
  }
  if (any) programs_.RepeatDrains(now_);
  return any;
}

void Simulation::LeaveNow(Rank rank, const Status& why) {
  Host& leaving = host(rank);
  if (leaving.leaving) return;
  leaving.leaving = true;
  checker_.Left(now_, rank);
  leaving.endpoint->Leave(now_, why);
  programs_.Stop(rank);
  Drive(rank);
}

// ---------------------------------------------------------------------------------- the driver

void Simulation::Drive(Rank rank) {
  Host& driven = host(rank);
  if (driven.silent) return;
  bool more = true;
  while (more && checker_.failure().empty()) {
    more = Transmits(rank);
    more = TakeEvents(rank) || more;
    if (more) driven.idle_timers = 0;
  }
  if (driven.silent) return;
  checker_.Driven(now_, rank, *driven.endpoint);
  memory_peak_bytes_ = std::max(memory_peak_bytes_, driven.endpoint->memory_bytes());
  if (driven.leaving && !driven.refused && driven.endpoint->finished()) {
    driven.silent = true;  // its process exits
    return;
  }
  SetTimer(rank);
}

bool Simulation::Transmits(Rank rank) {
  Host& sender = host(rank);
  bool any = false;
  while (!sender.blocked) {
    if (!sender.refused) {
      const std::size_t batch_max = 1 + prng_.Below(scenario_.batch_max);
      sender.refused = sender.endpoint->PollTransmit(
          now_, std::span(sender.buffer).first(batch_max * scenario_.datagram_bytes), batch_max);
      if (!sender.refused) break;
      Join(sender.refused->pieces, sender.datagrams);
      checker_.Polled(now_, rank, *sender.refused, batch_max);
      if (!checker_.failure().empty()) break;
    }
    any = true;
    if (!SendOrBlock(rank)) break;
  }
  return any;
}

bool Simulation::SendOrBlock(Rank rank) {
  Host& sender = host(rank);
  const Transmit transmit = *sender.refused;
  const std::size_t datagrams =
      (transmit.bytes + transmit.datagram_bytes - 1) / transmit.datagram_bytes;
  std::optional<Instant> room_at;
  if (prng_.Chance(static_cast<std::uint32_t>(scenario_.refuse_ppm))) {
    room_at = now_ + Duration(1) + Random(scenario_.refuse_us);
  } else if (scenario_.unaware == 0 && !network_.HasRoom(now_, rank, transmit.bytes, datagrams)) {
    room_at = network_.RoomAt(now_, rank, transmit.bytes, datagrams) + Duration(1);
  }
  if (room_at) {
    sender.blocked = true;
    events_.Push(*room_at, {EventKind::kRoom, rank});
    return false;
  }
  for (std::size_t at = 0; at < transmit.bytes; at += transmit.datagram_bytes) {
    const std::size_t bytes = std::min(transmit.datagram_bytes, transmit.bytes - at);
    const std::span<const std::byte> datagram = std::span(sender.datagrams).subspan(at, bytes);
    trace_.Datagram(now_, rank, "sends to", transmit.to, datagram);
    network_.Send(now_, rank, transmit.to, datagram);
  }
  sender.refused.reset();
  return true;
}

void Simulation::SetTimer(Rank rank) {
  Host& driven = host(rank);
  driven.timer = driven.endpoint->PollTimeout();
  if (driven.timer == kNever) return;
  if (driven.timer <= now_ && driven.blocked) driven.timer = now_ + kBlockedInterval;
  // A wake-up that comes earlier looks again; one that is later is one too many, and harmless.
  const Instant wakes = std::max(driven.timer, now_) + Random(scenario_.timer_late_us);
  if (wakes >= driven.wakes) return;
  driven.wakes = wakes;
  events_.Push(wakes, {EventKind::kTimer, rank});
}

void Simulation::HandleTimer(Rank rank) {
  Host& driven = host(rank);
  // One that an earlier one has overtaken.
  if (now_ < driven.wakes) return;
  driven.wakes = kNever;
  if (driven.timer > now_ && !driven.blocked) return SetTimer(rank);
  if (++driven.idle_timers > kIdleTimersMax && !driven.blocked) {
    checker_.Fail(now_, rank, "its timeouts come again and again without any progress");
  }
  driven.endpoint->HandleTimeout(now_);
  Drive(rank);
}

// ---------------------------------------------------------------------------------- the end

void Simulation::FailRestless() {
  checker_.FailOpenCalls(now_);
  for (std::uint16_t r = 0; r < scenario_.ranks; ++r) {
    const Host& each = host(Rank(r));
    if (each.silent || each.timer == kNever) continue;
    checker_.Fail(now_, Rank(r),
                  std::string("it does not come to rest, though every call ended") +
                      (each.leaving ? "; it is leaving" : ""));
  }
  checker_.Fail(now_, Rank(0), "the run does not come to an end");
}

void Simulation::FinishRun() {
  for (std::uint16_t r = 0; r < scenario_.ranks; ++r) {
    const Host& each = host(Rank(r));
    // Ranks that disagree and stay keep what a peer has sent for a call that they never make.
    if (each.silent || scenario_.mismatch != 0) continue;
    // What is carried, where a program has ended without its drain.
    if (scenario_.loses_data() && !(scenario_.goes_on() && !scenario_.IsRemovable(Rank(r)))) {
      continue;
    }
    if (each.endpoint->memory_bytes() != 0) {
      checker_.Fail(now_, Rank(r),
                    "it holds " + std::to_string(each.endpoint->memory_bytes()) +
                        " bytes though nothing is pending any more");
    }
  }
  checker_.Finish(now_, network_);
}

}  // namespace

SimulationReport Simulate(const Scenario& scenario, std::ostream* trace) {
  return Simulation(scenario, trace).Run();
}

}  // namespace optireduce
