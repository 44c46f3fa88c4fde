// The simulated network. Times are nanoseconds, since they must be exact.

#include "ffi/sim/network.h"

#include <map>

#include "ffi/sim/event_queue.h"
#include "ffi/sim/link.h"
#include "ffi/sim/scenario.h"
#include "ffi/sim/tcp_bursts.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

Instant AtNs(std::int64_t ns) { return Instant{} + Duration(ns); }
std::int64_t Nanoseconds(Instant at) { return (at - Instant{}).count(); }

LinkOptions MakeLink(std::uint64_t rate_mbps, std::int64_t propagation_ns,
                     std::size_t queue_bytes_max) {
  return {.rate_mbps = rate_mbps,
          .propagation = Duration(propagation_ns),
          .queue_bytes_max = queue_bytes_max};
}

// The labels in the order in which the queue returns them.
std::vector<std::string> EventOrder(
    const std::vector<std::tuple<std::int64_t, std::string>>& events) {
  EventQueue<std::string> queue;
  for (const auto& [at_ns, label] : events) queue.Push(AtNs(at_ns), label);
  std::vector<std::string> order;
  while (queue.next() != kNever) order.push_back(queue.Pop());
  return order;
}

// The segments that each of `hosts` links has carried after `seconds` of bursts.
std::vector<std::uint64_t> BurstsOn(std::size_t hosts, std::uint64_t rate_mbps, double bytes_per_s,
                                    double mean_bytes, std::int64_t seconds, std::uint64_t seed) {
  std::vector<Link> links;
  // Chosen: 10 ms of the rate.
  for (std::size_t host = 0; host < hosts; ++host) {
    links.emplace_back(MakeLink(rate_mbps, 0, static_cast<std::size_t>(rate_mbps) * 1250));
  }
  TcpBursts bursts({.seed = seed,
                    .bytes_per_s = bytes_per_s,
                    .mean_bytes = mean_bytes,
                    .end = AtNs(seconds * 1'000'000'000),
                    .way_back = std::chrono::microseconds(100)},
                   hosts);
  while (bursts.next() != kNever) bursts.Step(links);
  std::vector<std::uint64_t> carried;
  for (const Link& link : links) carried.push_back(link.carried());
  return carried;
}

// A network of equal links.
class TestNetwork {
 public:
  TestNetwork(std::uint16_t ranks, std::uint64_t seed, std::uint64_t rate_mbps,
              std::int64_t propagation_ns, std::size_t socket_bytes, std::size_t queue_bytes,
              const nb::dict& faults, std::int64_t latency_ns, double latency_tail,
              std::int64_t latency_hold_ns)
      : network_(Make(ranks, seed, rate_mbps, propagation_ns, socket_bytes, queue_bytes, faults,
                      {.median = Duration(latency_ns),
                       .tail = latency_tail,
                       .hold = Duration(latency_hold_ns)})) {}

  void Send(std::int64_t now_ns, std::uint16_t from, std::uint16_t to, const nb::bytes& datagram) {
    network_.Send(AtNs(now_ns), Rank(from), Rank(to), BytesOf(datagram));
  }
  void AddForeign(const nb::bytes& datagram) { network_.AddForeign(BytesOf(datagram)); }
  void SetCut(std::uint16_t rank, bool cut) { network_.SetCut(Rank(rank), cut); }

  // All arrivals, in order: (time, from, to, origin, bytes).
  nb::list Run() {
    nb::list arrivals;
    while (network_.next() != kNever) {
      const std::int64_t now_ns = Nanoseconds(network_.next());
      const std::optional<Arrival> delivery = network_.Step();
      if (!network_.IsConserved()) throw nb::value_error("the network has lost count");
      if (!delivery) continue;
      constexpr const char* kOrigins[] = {"genuine", "copy", "damaged", "injected"};
      arrivals.append(
          nb::make_tuple(now_ns, delivery->from.value(), delivery->to.value(),
                         kOrigins[static_cast<std::size_t>(delivery->origin)],
                         nb::bytes(reinterpret_cast<const char*>(delivery->datagram.data()),
                                   delivery->datagram.size())));
    }
    return arrivals;
  }

  nb::dict Faults() const {
    nb::dict faults;
#define OPTIREDUCE_NAME_FAULT(name, meaning) faults[#name] = network_.faults().name;
    OPTIREDUCE_FAULTS(OPTIREDUCE_NAME_FAULT)
#undef OPTIREDUCE_NAME_FAULT
    return faults;
  }

 private:
  static NetworkOptions Make(std::uint16_t ranks, std::uint64_t seed, std::uint64_t rate_mbps,
                             std::int64_t propagation_ns, std::size_t socket_bytes,
                             std::size_t queue_bytes, const nb::dict& faults,
                             const LatencyOptions& latency) {
    NetworkOptions options;
    options.latency = latency;
    options.seed = seed;
    options.up.assign(ranks, MakeLink(rate_mbps, propagation_ns, socket_bytes));
    options.down.assign(ranks, MakeLink(rate_mbps, propagation_ns, queue_bytes));
    const std::map<std::string, std::uint32_t FaultOptions::*> chances = {
        {"loss_ppm", &FaultOptions::loss_ppm},
        {"burst_ppm", &FaultOptions::burst_ppm},
        {"duplicate_ppm", &FaultOptions::duplicate_ppm},
        {"reorder_ppm", &FaultOptions::reorder_ppm},
        {"stall_ppm", &FaultOptions::stall_ppm},
        {"hold_ppm", &FaultOptions::hold_ppm},
        {"corrupt_ppm", &FaultOptions::corrupt_ppm},
        {"truncate_ppm", &FaultOptions::truncate_ppm},
        {"extend_ppm", &FaultOptions::extend_ppm},
        {"foreign_ppm", &FaultOptions::foreign_ppm},
        {"garbage_ppm", &FaultOptions::garbage_ppm},
        {"replay_ppm", &FaultOptions::replay_ppm},
        {"misdirect_ppm", &FaultOptions::misdirect_ppm},
    };
    const std::map<std::string, Duration FaultOptions::*> times = {
        {"burst_ns", &FaultOptions::burst},
        {"reorder_ns", &FaultOptions::reorder},
        {"stall_ns", &FaultOptions::stall},
        {"hold_ns", &FaultOptions::hold},
    };
    for (const auto& [key, value] : faults) {
      const auto name = nb::cast<std::string>(key);
      if (chances.contains(name)) {
        options.faults.*chances.at(name) = nb::cast<std::uint32_t>(value);
      } else {
        options.faults.*times.at(name) = Duration(nb::cast<std::int64_t>(value));
      }
    }
    return options;
  }

  Network network_;
};

// The line with every field that differs from its default; raises the parser's error.
std::string NormaliseScenario(const std::string& line) {
  Result<Scenario> scenario = ParseScenario(line);
  if (!scenario.ok()) throw nb::value_error(scenario.status().message().c_str());
  return Print(scenario.value());
}

void Bind(nb::module_& m) {
  m.def("event_order", &EventOrder, "events"_a);
  m.def("bursts_on", &BurstsOn, "hosts"_a, "rate_mbps"_a, "bytes_per_s"_a, "mean_bytes"_a,
        "seconds"_a, "seed"_a);
  m.def("normalise_scenario", &NormaliseScenario, "line"_a);
  nb::class_<Link>(m, "SimLink")
      .def(
          "__init__",
          [](Link* self, std::uint64_t rate_mbps, std::int64_t propagation_ns,
             std::size_t queue_bytes_max) {
            new (self) Link(MakeLink(rate_mbps, propagation_ns, queue_bytes_max));
          },
          "rate_mbps"_a, "propagation_ns"_a, "queue_bytes_max"_a)
      .def(
          "offer",
          [](Link& self, std::int64_t now_ns, std::size_t bytes) -> std::optional<std::int64_t> {
            const std::optional<Instant> at = self.Offer(AtNs(now_ns), bytes);
            if (!at) return std::nullopt;
            return Nanoseconds(*at);
          },
          "now_ns"_a, "bytes"_a)
      .def("stall", [](Link& self, std::int64_t until_ns) { self.Stall(AtNs(until_ns)); })
      .def("has_room", [](const Link& self, std::int64_t now_ns,
                          std::size_t bytes) { return self.HasRoom(AtNs(now_ns), bytes); })
      .def("room_at",
           [](const Link& self, std::int64_t now_ns, std::size_t bytes) {
             return Nanoseconds(self.RoomAt(AtNs(now_ns), bytes));
           })
      .def("queued_bytes",
           [](const Link& self, std::int64_t now_ns) { return self.queued_bytes(AtNs(now_ns)); })
      .def_prop_ro("carried", &Link::carried)
      .def_prop_ro("dropped", &Link::dropped);
  nb::class_<TestNetwork>(m, "SimNetwork")
      .def(nb::init<std::uint16_t, std::uint64_t, std::uint64_t, std::int64_t, std::size_t,
                    std::size_t, const nb::dict&, std::int64_t, double, std::int64_t>(),
           "ranks"_a, "seed"_a, "rate_mbps"_a, "propagation_ns"_a, "socket_bytes"_a,
           "queue_bytes"_a, "faults"_a, "latency_ns"_a = 0, "latency_tail"_a = 1.0,
           "latency_hold_ns"_a = 1'000'000)
      .def("send", &TestNetwork::Send, "now_ns"_a, "sender"_a, "receiver"_a, "datagram"_a)
      .def("add_foreign", &TestNetwork::AddForeign, "datagram"_a)
      .def("set_cut", &TestNetwork::SetCut, "rank"_a, "cut"_a)
      .def("run", &TestNetwork::Run)
      .def("faults", &TestNetwork::Faults);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
