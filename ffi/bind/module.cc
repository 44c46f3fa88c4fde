// The extension module `_native`: the Python interface of the library. Types are in
// jax_optireduce/_native.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/bind/call_facts.h"
#include "ffi/bind/event_dict.h"
#include "ffi/bind/module_callback.h"
#include "ffi/bind/module_settings.h"
#include "ffi/bind/module_simulate.h"
#include "ffi/bind/plugin_registration.h"
#include "ffi/bind/registry.h"
#include "ffi/bind/termination.h"
#include "ffi/bind/xla_allreduce.h"
#include "ffi/bind/xla_begin.h"
#include "ffi/bind/xla_concatenate.h"
#include "ffi/bind/xla_hadamard.h"
#include "ffi/crypto/gcm.h"
#include "ffi/net/fault_port.h"
#include "ffi/net/interfaces.h"
#include "ffi/net/udp_offload.h"
#include "ffi/protocol/wire/wire.h"
#include "ffi/runtime/communicator.h"

namespace optireduce {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

// The compiler of this module.
constexpr const char* kBuild =
#if defined(__clang__)
    "Clang " __clang_version__
#else
    "GCC " __VERSION__
#endif
#if !defined(__OPTIMIZE__)
    ", without optimization"
#endif
    ;

// An invalid argument is a ValueError, every other error a RuntimeError.
void RaiseUnlessOk(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kInvalidArgument) {
    throw nb::value_error(status.message().c_str());
  }
  throw std::runtime_error(status.message());
}

template <typename T>
T ValueOrRaise(Result<T> result) {
  RaiseUnlessOk(result.status());
  return std::move(result.value());
}

// The Python object. The registry holds the communicator too, until close().
class PyCommunicator {
 public:
  explicit PyCommunicator(const CommunicatorOptions& options)
      : communicator_(ValueOrRaise(Registry::Global().Open(options))) {}

  std::vector<std::uint16_t> Ports() const { return communicator_->ports(); }
  std::size_t PathMtuBytes(const std::string& address) const {
    return ValueOrRaise(Communicator::PathMtuBytes(address));
  }
  std::size_t GrantedReceiveBufferBytes() const {
    return communicator_->granted_receive_buffer_bytes();
  }
  void Connect(const std::vector<std::pair<std::string, std::vector<std::uint16_t>>>& ranks,
               std::size_t datagram_bytes_max, std::size_t peer_receive_buffer_bytes) {
    std::vector<RankAddress> addresses;
    for (const auto& [address, ports] : ranks) {
      addresses.push_back({.address = address, .ports = ports});
    }
    RaiseUnlessOk(communicator_->Connect(addresses, datagram_bytes_max, peer_receive_buffer_bytes));
  }
  void ServeStatus(const std::string& folder) { RaiseUnlessOk(communicator_->ServeStatus(folder)); }
  void Cancel(const std::string& reason) { communicator_->Cancel(reason); }
  void Close(const std::string& reason) { Registry::Global().Close(communicator_, reason); }
  std::map<std::string, std::uint64_t> Counters() const {
    const auto counters = communicator_->counters();
    return {counters.begin(), counters.end()};
  }
  nb::list FlightRecord() const {
    std::vector<CallRecord> records;
    {
      const nb::gil_scoped_release release;
      records = communicator_->FlightRecords();
    }
    return ToList(records);
  }
  nb::dict CollectiveTotals() const { return ToDict(communicator_->collective_totals()); }
  nb::list CallsUnderWay() const {
    std::vector<CallRecord> records;
    {
      const nb::gil_scoped_release release;
      records = communicator_->CallsUnderWay();
    }
    return ToList(records);
  }
  std::size_t BegunCallsUnderWay() const { return communicator_->begun_calls().under_way(); }
  nb::list SilentRanks() const { return ToList(communicator_->SilentRanks()); }
  void ProbePaths(const std::vector<std::size_t>& lengths) { communicator_->ProbePaths(lengths); }
  nb::list UnprovenPaths() const {
    nb::list found;
    for (const auto& [lane, path] : communicator_->UnprovenPaths()) {
      found.append(
          nb::make_tuple(lane, path.peer.value(), path.heard, path.answered, path.passed_bytes));
    }
    return found;
  }
  nb::list UnreachedRanks() const { return ToList(communicator_->UnreachedRanks()); }
  nb::object WaitForEvent() const {
    std::optional<MonitorEvent> event;
    {
      const nb::gil_scoped_release release;
      event = communicator_->WaitForEvent();
    }
    return ToObject(event);
  }
  // (description, bytes) of each collective.
  std::vector<std::pair<std::string, std::uint64_t>> TakeLateData() {
    std::vector<std::pair<std::string, std::uint64_t>> named;
    for (const LateData& late : communicator_->TakeLateData()) {
      named.emplace_back(late.description, late.bytes);
    }
    return named;
  }
  nb::dict Features() const {
    const SocketFeatures features = communicator_->features();
    nb::dict named;
    named["gso"] = features.segmentation_offload;
    named["gro"] = features.receive_offload;
    named["receive_buffer_bytes"] = communicator_->granted_receive_buffer_bytes();
    named["datagram_bytes_max"] = communicator_->datagram_bytes_max();
    return named;
  }

 private:
  std::shared_ptr<Communicator> communicator_;
};

std::vector<std::pair<std::string, std::string>> NamedAddresses() {
  std::vector<std::pair<std::string, std::string>> named;
  for (InterfaceAddress& found : ValueOrRaise(InterfaceAddresses())) {
    named.emplace_back(std::move(found.interface), std::move(found.address));
  }
  return named;
}

void OpenCommunicator(PyCommunicator* self, const nb::dict& settings) {
  const CommunicatorOptions options = SettingsOf(settings);
  const nb::gil_scoped_release release;
  new (self) PyCommunicator(options);
}

void BindCommunicator(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<PyCommunicator>(module, "Communicator",
                             "This process's end of a session: sockets, threads and calls.")
      .def("__init__", &OpenCommunicator, "settings"_a)
      .def("ports", &PyCommunicator::Ports)
      .def("path_mtu_bytes", &PyCommunicator::PathMtuBytes, "address"_a, Release())
      .def("granted_receive_buffer_bytes", &PyCommunicator::GrantedReceiveBufferBytes)
      .def("connect", &PyCommunicator::Connect, "peers"_a, "datagram_bytes_max"_a,
           "peer_receive_buffer_bytes"_a, Release())
      .def("serve_status", &PyCommunicator::ServeStatus, "folder"_a)
      .def("cancel", &PyCommunicator::Cancel, "reason"_a, Release())
      .def("close", &PyCommunicator::Close, "reason"_a, Release())
      .def("take_late_data", &PyCommunicator::TakeLateData)
      .def("counters", &PyCommunicator::Counters, Release())
      .def("flight_record", &PyCommunicator::FlightRecord)
      .def("collective_totals", &PyCommunicator::CollectiveTotals)
      .def("calls_under_way", &PyCommunicator::CallsUnderWay)
      .def("begun_calls_under_way", &PyCommunicator::BegunCallsUnderWay)
      .def("silent_ranks", &PyCommunicator::SilentRanks)
      .def("probe_paths", &PyCommunicator::ProbePaths, "lengths"_a)
      .def("unproven_paths", &PyCommunicator::UnprovenPaths)
      .def("unreached_ranks", &PyCommunicator::UnreachedRanks)
      .def("wait_for_event", &PyCommunicator::WaitForEvent)
      .def("features", &PyCommunicator::Features);
}

// Handlers of host computations; of programs on CPU devices, too.
constexpr NamedHandler kHostHandlers[] = {{"jax_optireduce_allreduce", &AllReduceHandler},
                                          {"jax_optireduce_sequence", &SequenceHandler}};

// The registrations by target name, for jax.ffi.register_ffi_target().
nb::dict Registrations() {
  nb::dict capsules;
  const auto add = [&capsules](const char* target, XLA_FFI_Handler* handler) {
    capsules[target] = nb::capsule(reinterpret_cast<void*>(handler));
  };
  for (const NamedHandler& named : kHostHandlers) add(named.target, named.handler);
  add("jax_optireduce_begin", &BeginHandler);
  add("jax_optireduce_end", &EndHandler);
  add("jax_optireduce_concatenate", &ConcatenateHandler);
  add("jax_optireduce_hadamard_encode", &HadamardEncodeHandler);
  add("jax_optireduce_hadamard_decode", &HadamardDecodeHandler);
  return capsules;
}

// (major, minor) of its PJRT C API.
std::pair<int, int> RegisterHandlersWithPlugin(const std::string& path) {
  const PluginVersion version = ValueOrRaise(RegisterWithPlugin(path, kHostHandlers));
  return {version.major, version.minor};
}

// The facts of ffi/bind/call_facts.h, as constants of the module.
void BindFacts(nb::module_& module) {
  const auto text = [](std::string_view name) { return nb::str(name.data(), name.size()); };
  nb::dict modes;
  for (const Mode& mode : kModes) modes[text(mode.name)] = Defers(mode);
  nb::list wire_formats;
  for (std::uint8_t i = 0; i < kWireFormats; ++i) {
    wire_formats.append(text(NameOf(static_cast<WireFormat>(i))));
  }
  nb::list statistics;
  for (const Statistic& statistic : kStatistics) statistics.append(text(statistic.name));
  module.attr("MODES") = modes;
  module.attr("WIRE_FORMATS") = nb::tuple(wire_formats);
  module.attr("STATISTICS") = nb::tuple(statistics);
  module.attr("NAME_BYTES_MAX") = kNameBytesMax;
  module.attr("TOKEN_ELEMENTS") = kTokenElements;
  module.attr("DRAIN_OF_CALLS") = kDrainOfCalls;
  module.attr("DRAIN_OF_CALLS_IF_ANY") = kDrainOfCallsIfAny;
}

nb::dict ProbeUdpFeatures(std::size_t receive_buffer_bytes) {
  const UdpPortOptions options{.receive_buffer_bytes = receive_buffer_bytes};
  UdpFeatures features;
  {
    const nb::gil_scoped_release release;
    features = ValueOrRaise(ProbeUdp(options));
  }
  nb::dict named;
  named["gso"] = features.gso;
  named["gro"] = features.gro;
  named["receive_buffer_bytes"] = features.receive_buffer_bytes;
  named["send_buffer_bytes"] = features.send_buffer_bytes;
  named["send_buffer_wanted_bytes"] = options.send_buffer_bytes;
  named["loopback_mtu_bytes"] = features.loopback_mtu_bytes;
  return named;
}

nb::list ListFailures() {
  std::vector<Failure> failures;
  {
    const nb::gil_scoped_release release;
    failures = Registry::Global().failures().All();
  }
  nb::list list;
  for (const Failure& failure : failures) {
    nb::dict named;
    named["cause"] = NameOf(failure.status.blame().cause);
    named["message"] = failure.status.message();
    named["ranks"] = ToList(failure.status.blame().ranks);
    named["collective"] = failure.collective;
    named["sequence"] = failure.sequence.value();
    named["waited_s"] = ToSeconds(failure.waited);
    list.append(named);
  }
  return list;
}

// `handler` becomes Python's handler of SIGTERM.
void HandleTermination(const nb::callable& handler, bool ends) {
  std::function<void()> on_signal;
  if (ends) on_signal = [] { Registry::Global().CloseAll("its process received SIGTERM"); };
  RaiseUnlessOk(ChainTermination(
      [&handler] { nb::module_::import_("signal").attr("signal")(SIGTERM, handler); },
      std::move(on_signal)));
}

// No call may be pending, and no lane may run, when the libraries below begin their own shutdown.
void CloseAll() {
  for (const auto& communicator : Registry::Global().All()) {
    Registry::Global().Close(communicator, "the process exits");
  }
}

}  // namespace
}  // namespace optireduce

NB_MODULE(_native, module) {
  namespace nb = nanobind;
  using nb::literals::operator""_a;
  using Release = nb::call_guard<nb::gil_scoped_release>;
  module.doc() = "The C++ part of jax_optireduce.";
  module.attr("BUILD") = optireduce::kBuild;
  module.def("registrations", &optireduce::Registrations);
  module.def("register_with_plugin", &optireduce::RegisterHandlersWithPlugin, "path"_a);
  module.def("wire_version", [] { return static_cast<int>(optireduce::kWireVersion); });
  module.def("cipher_library",
             [] { return optireduce::Describe(optireduce::FastestCipherLibrary()); });
  module.def("interface_addresses", &optireduce::NamedAddresses);
  module.def("handle_termination", &optireduce::HandleTermination, "handler"_a, "ends"_a);
  module.def("leave_termination", &optireduce::ForwardToPreviousHandler);
  module.def("termination_handled", &optireduce::TerminationHandled);
  module.def(
      "end_within",
      [](double seconds) { optireduce::EndWithin(optireduce::Seconds("seconds", seconds)); },
      "seconds"_a);
  module.def("exit_with", &optireduce::ExitWith, "code"_a);
  module.def("leave_to_parent", [] { nb::set_leak_warnings(false); });
  module.def("probe_udp", &optireduce::ProbeUdpFeatures, "receive_buffer_bytes"_a);
  module.def("failures", &optireduce::ListFailures);
  optireduce::BindFacts(module);
  optireduce::BindCallback(module);
  optireduce::BindSimulate(module);
  optireduce::BindCommunicator(module);
  nb::module_::import_("atexit").attr("register")(
      nb::cpp_function(&optireduce::CloseAll, Release()));
}
