// The extension module `_native`: the Python interface of the library. Types are in
// jax_optireduce/_native.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/bind/call_facts.h"
#include "ffi/bind/event_dict.h"
#include "ffi/bind/module_parts.h"
#include "ffi/bind/plugin_registration.h"
#include "ffi/bind/registry.h"
#include "ffi/bind/termination.h"
#include "ffi/bind/xla_handlers.h"
#include "ffi/crypto/gcm.h"
#include "ffi/net/fault_port.h"
#include "ffi/net/interfaces.h"
#include "ffi/net/udp_offload.h"
#include "ffi/net/udp_port.h"
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

template <typename Function>
auto WithoutGil(Function function) {
  const nb::gil_scoped_release release;
  return function();
}

// The registry holds the communicator too, until close().
std::shared_ptr<Communicator> OpenCommunicator(const nb::dict& settings) {
  const CommunicatorOptions options = SettingsOf(settings);
  return ValueOrRaise(WithoutGil([&] { return Registry::Global().Open(options); }));
}

void Connect(Communicator& communicator,
             const std::vector<std::pair<std::string, std::vector<std::uint16_t>>>& ranks,
             std::size_t datagram_bytes_max, std::size_t peer_receive_buffer_bytes) {
  std::vector<RankAddress> addresses;
  for (const auto& [address, ports] : ranks) {
    addresses.push_back({.address = address, .ports = ports});
  }
  RaiseUnlessOk(communicator.Connect(addresses, datagram_bytes_max, peer_receive_buffer_bytes));
}

nb::list UnprovenPaths(const Communicator& communicator) {
  nb::list found;
  for (const auto& [lane, path] : communicator.UnprovenPaths()) {
    found.append(
        nb::make_tuple(lane, path.peer.value(), path.heard, path.answered, path.passed_bytes));
  }
  return found;
}

// (description, bytes) of each collective.
nb::list TakeLateData(Communicator& communicator) {
  nb::list found;
  for (const LateData& late : communicator.TakeLateData()) {
    found.append(nb::make_tuple(ToObject(late.description), late.bytes));
  }
  return found;
}

nb::dict Features(const Communicator& communicator) {
  const SocketFeatures features = communicator.features();
  return ToDict({{"gso", features.segmentation_offload},
                 {"gro", features.receive_offload},
                 {"receive_buffer_bytes", communicator.granted_receive_buffer_bytes()},
                 {"datagram_bytes_max", communicator.datagram_bytes_max()}});
}

nb::list NamedAddresses() {
  nb::list named;
  for (const InterfaceAddress& found : ValueOrRaise(InterfaceAddresses())) {
    named.append(nb::make_tuple(found.interface, found.address));
  }
  return named;
}

// The functions by which Python observes a session.
void BindObservations(nb::class_<Communicator>& bound) {
  // A function of the communicator without arguments, whose result becomes a list or dictionary.
  const auto released = [](auto function, auto convert) {
    return [=](Communicator& self) {
      return convert(WithoutGil([&] { return std::invoke(function, self); }));
    };
  };
  const auto list = [](const auto& values) { return ToList(values); };
  const auto dict = [](const auto& values) { return ToDict(values); };
  const auto object = [](const auto& value) { return ToObject(value); };
  bound.def("take_late_data", &TakeLateData)
      .def("counters", released(&Communicator::counters, dict))
      .def("flight_record", released(&Communicator::FlightRecords, list))
      .def("collective_totals", released(&Communicator::collective_totals, dict))
      .def("calls_under_way", released(&Communicator::CallsUnderWay, list))
      .def("begun_calls_under_way",
           [](const Communicator& self) { return self.begun_calls().counters().under_way; })
      .def("silent_ranks", released(&Communicator::SilentRanks, list))
      .def("probe_paths", &Communicator::ProbePaths, "lengths"_a)
      .def("unproven_paths", &UnprovenPaths)
      .def("unreached_ranks", released(&Communicator::UnreachedRanks, list))
      .def("wait_for_event", released(&Communicator::WaitForEvent, object))
      .def("features", &Features);
}

void BindCommunicator(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Communicator> bound(module, "Communicator",
                                 "This process's end of a session: sockets, threads and calls.");
  BindObservations(bound);
  bound.def(nb::new_(&OpenCommunicator), "settings"_a)
      .def("ports", &Communicator::ports)
      .def(
          "path_mtu_bytes",
          [](const Communicator&, const std::string& address) {
            return ValueOrRaise(UdpPort::path_mtu_bytes(address));
          },
          "address"_a, Release())
      .def("granted_receive_buffer_bytes", &Communicator::granted_receive_buffer_bytes)
      .def("connect", &Connect, "peers"_a, "datagram_bytes_max"_a, "peer_receive_buffer_bytes"_a,
           Release())
      .def(
          "serve_status",
          [](Communicator& self, const std::string& folder) {
            RaiseUnlessOk(self.ServeStatus(folder));
          },
          "folder"_a)
      .def(
          "remove",
          [](Communicator& self, std::uint16_t rank, const std::string& reason) {
            RaiseUnlessOk(self.Remove(rank, reason));
          },
          "rank"_a, "reason"_a)
      .def("cancel", &Communicator::Cancel, "reason"_a, Release())
      .def(
          "take_name",
          [](const std::shared_ptr<Communicator>& self, const std::string& name) {
            Registry::Global().Rename(self, name);
          },
          "name"_a)
      .def(
          "close",
          [](const std::shared_ptr<Communicator>& self, const std::string& reason) {
            Registry::Global().Close(self, reason);
          },
          "reason"_a, Release())
      .def("continue_from", &Communicator::ContinueFrom, "earlier"_a, Release());
}

// Handlers of host computations; of programs on CPU devices, too.
constexpr NamedHandler kHostHandlers[] = {{"jax_optireduce_allreduce", &AllReduceHandler},
                                          {"jax_optireduce_sequence", &SequenceHandler},
                                          {"jax_optireduce_begin", &BeginHandler},
                                          {"jax_optireduce_end", &EndHandler}};

// The registrations by target name, for jax.ffi.register_ffi_target().
nb::dict Registrations() {
  nb::dict capsules;
  const auto add = [&capsules](const char* target, XLA_FFI_Handler* handler) {
    capsules[target] = nb::capsule(reinterpret_cast<void*>(handler));
  };
  for (const NamedHandler& named : kHostHandlers) add(named.target, named.handler);
  add("jax_optireduce_concatenate", &ConcatenateHandler);
  add("jax_optireduce_hadamard_encode", &HadamardEncodeHandler);
  add("jax_optireduce_hadamard_decode", &HadamardDecodeHandler);
  return capsules;
}

// (major, minor) of its PJRT C API.
std::pair<int, int> RegisterHandlersWithPlugin(const std::string& path) {
  return ValueOrRaise(RegisterWithPlugin(path, kHostHandlers));
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
  module.attr("EACH_PROCESS") = kEachProcess;
}

nb::dict ProbeUdpFeatures(std::size_t receive_buffer_bytes) {
  const UdpPortOptions options{.receive_buffer_bytes = receive_buffer_bytes};
  const UdpFeatures features = ValueOrRaise(WithoutGil([&] { return ProbeUdp(options); }));
  return ToDict({{"gso", features.gso},
                 {"gro", features.gro},
                 {"receive_buffer_bytes", features.receive_buffer_bytes},
                 {"send_buffer_bytes", features.send_buffer_bytes},
                 {"send_buffer_wanted_bytes", options.send_buffer_bytes},
                 {"loopback_mtu_bytes", features.loopback_mtu_bytes}});
}

nb::list ListFailures() {
  nb::list list;
  for (const Failure& failure : WithoutGil([] { return Registry::Global().failures().All(); })) {
    list.append(ToDict({{"cause", NameOf(failure.status.blame().cause)},
                        {"message", failure.status.message()},
                        {"ranks", failure.status.blame().ranks},
                        {"collective", failure.collective},
                        {"sequence", failure.sequence},
                        {"waited_s", failure.waited}}));
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
  optireduce::BindHostCalls(module);
  optireduce::BindSimulate(module);
  optireduce::BindCommunicator(module);
  nb::module_::import_("atexit").attr("register")(
      nb::cpp_function(&optireduce::CloseAll, Release()));
}
