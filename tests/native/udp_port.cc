// Ports on real sockets, with and without faults.

#include "ffi/net/udp_port.h"

#include <nanobind/stl/map.h>

#include <algorithm>
#include <map>

#include "ffi/net/clock.h"
#include "ffi/net/fault_port.h"
#include "ffi/net/udp_offload.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// A port on a socket, with or without faults.
class TestPort {
 public:
  TestPort(const std::string& address, std::uint16_t port, bool segmentation_offload,
           bool receive_offload, std::size_t receive_buffer_bytes, std::size_t send_buffer_bytes) {
    std::unique_ptr<UdpPort> socket =
        Unwrap(UdpPort::Create(UdpPortOptions{.bind_address = address,
                                              .port = port,
                                              .receive_buffer_bytes = receive_buffer_bytes,
                                              .send_buffer_bytes = send_buffer_bytes,
                                              .segmentation_offload = segmentation_offload,
                                              .receive_offload = receive_offload}));
    udp_ = socket.get();
    port_ = std::move(socket);
  }

  void SetPeers(const std::vector<std::pair<std::string, std::uint16_t>>& peers,
                std::size_t datagram_bytes_max) {
    std::vector<PeerAddress> addresses;
    for (const auto& [address, port] : peers) addresses.push_back({address, port});
    RaiseUnlessOk(udp_->SetPeers(addresses, datagram_bytes_max));
    datagram_bytes_max_ = datagram_bytes_max;
  }
  void AddFaults(const std::map<std::string, double>& settings) {
    auto port = std::make_unique<FaultPort>(std::move(port_), Unwrap(Faults::FromMap(settings)));
    faults_ = port.get();
    port_ = std::move(port);
  }

  bool Send(std::uint16_t to, const std::vector<nb::bytes>& parts, std::size_t datagram_bytes) {
    std::vector<std::span<const std::byte>> pieces;
    for (const nb::bytes& part : parts) {
      pieces.emplace_back(static_cast<const std::byte*>(part.data()), part.size());
    }
    return port_->Send(Rank(to), pieces, datagram_bytes);
  }
  std::vector<nb::bytes> Receive() {
    std::vector<nb::bytes> datagrams;
    const std::size_t count = port_->Receive([&datagrams](std::span<const std::byte> datagram) {
      datagrams.emplace_back(datagram.data(), datagram.size());
    });
    if (count != datagrams.size()) throw std::runtime_error("Receive() miscounted");
    return datagrams;
  }
  // Returns the seconds waited. Negative `timeout_s`: unlimited.
  double Wait(double timeout_s) {
    const Instant begin = ClockNow();
    const Duration timeout =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_s));
    port_->Wait(timeout_s < 0 ? kNever : begin + timeout);
    return std::chrono::duration<double>(ClockNow() - begin).count();
  }
  void Wake() { port_->Wake(); }

  // The batch limit for the longest datagrams.
  std::size_t BatchMax() const {
    return std::min(port_->batch_max(), kUdpPayloadBytesMax / datagram_bytes_max_);
  }
  DatagramPort& port() { return *port_; }
  const UdpPort& udp() const { return *udp_; }
  std::map<std::string, std::uint64_t> Errors() const {
    const SendErrors errors = udp_->send_errors();
    return {{"refused", errors.refused},
            {"unreachable", errors.unreachable},
            {"too_large", errors.too_large},
            {"unsent", errors.unsent},
            {"queue_full", errors.queue_full}};
  }
  std::map<std::string, std::uint64_t> FaultsDone() const {
    if (faults_ == nullptr) return {};
    const FaultCounters& counters = faults_->counters();
    return {{"offered", counters.offered},      {"loss", counters.lost},
            {"duplicate", counters.duplicated}, {"reorder", counters.reordered},
            {"corrupt", counters.corrupted},    {"truncate", counters.truncated}};
  }

 private:
  std::unique_ptr<DatagramPort> port_;
  // Both belong to `port_`.
  UdpPort* udp_ = nullptr;
  FaultPort* faults_ = nullptr;
  std::size_t datagram_bytes_max_ = 1;
};

nb::dict Probe(std::size_t receive_buffer_bytes, std::size_t send_buffer_bytes) {
  const UdpFeatures features = Unwrap(ProbeUdp(
      {.receive_buffer_bytes = receive_buffer_bytes, .send_buffer_bytes = send_buffer_bytes}));
  nb::dict result;
  result["gso"] = features.gso;
  result["gro"] = features.gro;
  result["receive_buffer_bytes"] = features.receive_buffer_bytes;
  result["send_buffer_bytes"] = features.send_buffer_bytes;
  result["loopback_mtu_bytes"] = features.loopback_mtu_bytes;
  return result;
}

void Bind(nb::module_& m) {
  const UdpPortOptions defaults;
  nb::class_<TestPort>(m, "UdpPort")
      .def(nb::init<const std::string&, std::uint16_t, bool, bool, std::size_t, std::size_t>(),
           "bind_address"_a = "127.0.0.1", "port"_a = defaults.port,
           "segmentation_offload"_a = defaults.segmentation_offload,
           "receive_offload"_a = defaults.receive_offload,
           "receive_buffer_bytes"_a = defaults.receive_buffer_bytes,
           "send_buffer_bytes"_a = defaults.send_buffer_bytes)
      .def("set_peers", &TestPort::SetPeers, "peers"_a, "datagram_bytes_max"_a)
      .def("add_faults", &TestPort::AddFaults, "settings"_a)
      .def("send", &TestPort::Send, "to"_a, "pieces"_a, "datagram_bytes"_a)
      .def("receive", &TestPort::Receive)
      .def("wait", &TestPort::Wait, "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("wake", &TestPort::Wake)
      .def_prop_ro("local_port", [](const TestPort& self) { return self.udp().local_port(); })
      .def_prop_ro("batch_max", &TestPort::BatchMax)
      .def_prop_ro("socket_drops", [](TestPort& self) { return self.port().socket_drops(); })
      .def_prop_ro("segmentation_offload",
                   [](const TestPort& self) { return self.udp().segmentation_offload(); })
      .def_prop_ro("receive_offload",
                   [](const TestPort& self) { return self.udp().receive_offload(); })
      .def_prop_ro("granted_receive_buffer_bytes",
                   [](const TestPort& self) { return self.udp().granted_receive_buffer_bytes(); })
      .def("errors", &TestPort::Errors)
      .def("faults_done", &TestPort::FaultsDone);
  m.def("path_mtu_bytes",
        [](const std::string& address) { return Unwrap(UdpPort::path_mtu_bytes(address)); });
  m.def("probe_udp", &Probe, "receive_buffer_bytes"_a = defaults.receive_buffer_bytes,
        "send_buffer_bytes"_a = defaults.send_buffer_bytes);
  m.def("check_faults",
        [](const std::map<std::string, double>& settings) { Unwrap(Faults::FromMap(settings)); });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
