// The text of a report, and the socket that gives it.

#include "ffi/runtime/status_report.h"

#include "ffi/net/clock.h"
#include "ffi/runtime/status_server.h"
#include "tests/native/binding.h"
#include "tests/native/inbox.h"

namespace optireduce::testing {
namespace OR_FILE {

// Returns the report of a process with so many calls of this name, as bytes: the name may be no
// text.
nb::bytes ReportWithName(const nb::bytes& name, std::size_t calls) {
  StatusReport report;
  CallRecord call;
  call.collective.assign(name.c_str(), name.size());
  call.mode = "exact";
  report.calls.assign(calls, call);
  const std::string text = ToJson(report);
  return nb::bytes(text.data(), text.size());
}

class TestServer {
 public:
  TestServer(const std::string& folder, const std::string& name, std::size_t bytes)
      : server_(Unwrap(StatusServer::Start(folder, name, [bytes, made_at = made_at_] {
          made_at->Put(ToSeconds(ClockNow()));
          return std::string(bytes, 'x');
        }))) {}
  ~TestServer() { Close(); }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  void Close() {
    const nb::gil_scoped_release release;
    server_.reset();
  }
  // When each report was made, in seconds of the clock of the runtime.
  std::vector<double> MadeAt() const { return made_at_->Now(); }

 private:
  const std::shared_ptr<Inbox<double>> made_at_ = std::make_shared<Inbox<double>>();
  std::unique_ptr<StatusServer> server_;
};

void Bind(nb::module_& m) {
  m.def("report_with_name", &ReportWithName, "name"_a, "calls"_a);
  nb::class_<TestServer>(m, "StatusServer")
      .def(nb::init<const std::string&, const std::string&, std::size_t>(), "folder"_a, "name"_a,
           "bytes"_a)
      .def_prop_ro("made_at", &TestServer::MadeAt)
      .def("close", &TestServer::Close);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
