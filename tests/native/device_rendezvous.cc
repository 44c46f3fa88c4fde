// The rendezvous of the devices of a process, whose network is the test.

#include "ffi/runtime/device_rendezvous.h"

#include <algorithm>
#include <future>
#include <limits>

#include "tests/native/binding.h"
#include "tests/native/collective.h"
#include "tests/native/inbox.h"

namespace optireduce::testing {
namespace OR_FILE {

// A call passed to the network, or announced as never made.
struct NetworkCall {
  std::string name;
  std::uint32_t sequence = 0;
  std::vector<float> values;
  std::string given_up;  // the reason
};

// The end of a call on a device.
struct DeviceEnd {
  std::uint32_t rank = 0;
  std::uint32_t sequence = 0;
  std::string error;
  std::vector<float> values;
};

// Buckets are one leaf of float32.
class TestDeviceRendezvous {
 public:
  TestDeviceRendezvous(double call_timeout_s, double stall_timeout_s, std::size_t threads)
      : pool_(std::make_shared<CompletionPool>(CompletionPoolOptions{.threads_max = threads})),
        rendezvous_(DeviceRendezvous::Create(
            pool_, {.submit =
                        [shared = shared_](Submission submission, CallDoneFunction done) {
                          const Leaf& leaf = submission.leaves.front();
                          const std::span<float> result(reinterpret_cast<float*>(leaf.data),
                                                        leaf.elements);
                          const std::span values(reinterpret_cast<const float*>(leaf.values()),
                                                 leaf.elements);
                          shared->sent.Put({.leaf = result, .done = std::move(done)});
                          shared->network.Put({.name = submission.spec.name,
                                               .sequence = submission.sequence.value(),
                                               .values = {values.begin(), values.end()},
                                               .given_up = {}});
                        },
                    .give_up =
                        [shared = shared_](const Submission& call, const Status& why) {
                          shared->given_up.Put({.name = call.spec.name,
                                                .sequence = call.sequence.value(),
                                                .values = {},
                                                .given_up = why.message()});
                        },
                    .tell = [shared = shared_](
                                DevicesEvent event) { shared->event.Put(std::move(event)); },
                    .call_timeout = FromSeconds(call_timeout_s),
                    .stall_timeout = FromSeconds(stall_timeout_s)})) {}
  ~TestDeviceRendezvous() {
    Release();
    Close("the test is over");
    shared_->sent.Clear();  // Breaks the cycle of references between the calls and the rendezvous.
  }
  TestDeviceRendezvous(const TestDeviceRendezvous&) = delete;
  TestDeviceRendezvous& operator=(const TestDeviceRendezvous&) = delete;

  void Start(std::uint32_t rank, const std::vector<float>& values, const std::string& name,
             std::uint32_t devices, std::optional<std::uint32_t> step, const std::string& mode,
             std::uint32_t group, std::uint32_t groups, bool begun, bool drain, bool apart) {
    auto bucket = std::make_shared<std::vector<float>>(values);
    const auto from = std::make_shared<const std::vector<float>>(values);
    if (apart) std::ranges::fill(*bucket, std::numeric_limits<float>::quiet_NaN());
    DeviceCall call;
    call.spec = Collective{.name = name,
                           .mode = mode,
                           .members = {0, 1},
                           .elements = values.size(),
                           .description = name,
                           .wire_format = "float32"}
                    .ToSpec();
    call.rank = rank;
    // The local ranks are those of this device's group.
    for (std::uint32_t r = 0; r < devices; ++r) call.local_ranks.push_back(devices * group + r);
    call.group = group;
    call.groups = groups;
    call.begun = begun;
    call.drain = drain;
    if (step) call.step = Sequence(*step);
    call.key = name;
    call.leaves = {{.data = reinterpret_cast<std::byte*>(bucket->data()),
                    .elements = bucket->size(),
                    .from = apart ? reinterpret_cast<const std::byte*>(from->data()) : nullptr}};
    call.done = [shared = shared_, bucket, from, rank](const DeviceResult& result) {
      shared->ended.Put({.rank = rank,
                         .sequence = result.sequence.value(),
                         .error = result.status.message(),
                         .values = *bucket});
      // XLA may use the memory for other values from here on.
      std::ranges::fill(*bucket, std::numeric_limits<float>::quiet_NaN());
    };
    rendezvous_->Start(std::move(call));
  }
  // One thread of the pool does nothing from here on until Release().
  void Hold() {
    pool_->Run([gate = released_] { gate.wait(); });
  }
  void Release() {
    if (!std::exchange(is_released_, true)) release_.set_value();
  }
  // Ends the n-th call passed to the network: adds `added` to every value.
  void Finish(std::size_t which, float added, const std::string& error) {
    const Sent sent = shared_->sent.Wait(which + 1)[which];
    for (float& value : sent.leaf) value += added;
    sent.done(error.empty() ? Status() : Status(StatusCode::kUnavailable, error), CallStats{});
  }
  void Cancel(const std::string& why) { rendezvous_->Cancel(Status(StatusCode::kCancelled, why)); }
  void Close(const std::string& why) {
    const nb::gil_scoped_release release;
    rendezvous_->Close(Status(StatusCode::kCancelled, why));
  }

  std::vector<NetworkCall> Network(std::size_t count) { return shared_->network.Wait(count); }
  std::vector<NetworkCall> GivenUp() { return shared_->given_up.Now(); }
  std::vector<DeviceEnd> Ended(std::size_t count) { return shared_->ended.Wait(count); }
  // The missing devices of each reported stall.
  std::vector<std::vector<std::uint32_t>> Missing(std::size_t count) {
    std::vector<std::vector<std::uint32_t>> missing;
    for (const DevicesEvent& event : shared_->event.Wait(count)) missing.push_back(event.missing);
    return missing;
  }
  std::uint64_t Failures() const { return rendezvous_->failures(); }

 private:
  struct Sent {
    std::span<float> leaf;
    CallDoneFunction done;
  };
  struct Shared {
    Inbox<Sent> sent;
    Inbox<NetworkCall> network;
    Inbox<NetworkCall> given_up;
    Inbox<DeviceEnd> ended;
    Inbox<DevicesEvent> event;
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::promise<void> release_;
  const std::shared_future<void> released_ = release_.get_future().share();
  bool is_released_ = false;
  const std::shared_ptr<CompletionPool> pool_;
  const std::shared_ptr<DeviceRendezvous> rendezvous_;
};

void Bind(nb::module_& m) {
  nb::class_<NetworkCall>(m, "NetworkCall")
      .def_ro("name", &NetworkCall::name)
      .def_ro("sequence", &NetworkCall::sequence)
      .def_ro("values", &NetworkCall::values)
      .def_ro("given_up", &NetworkCall::given_up);
  nb::class_<DeviceEnd>(m, "DeviceEnd")
      .def_ro("rank", &DeviceEnd::rank)
      .def_ro("sequence", &DeviceEnd::sequence)
      .def_ro("error", &DeviceEnd::error)
      .def_ro("values", &DeviceEnd::values);
  nb::class_<TestDeviceRendezvous>(m, "DeviceRendezvous")
      .def(nb::init<double, double, std::size_t>(), "call_timeout_s"_a = 0.0,
           "stall_timeout_s"_a = 0.0, "threads"_a = CompletionPoolOptions{}.threads_max)
      .def("start", &TestDeviceRendezvous::Start, "rank"_a, "values"_a, nb::kw_only(),
           "name"_a = "x", "devices"_a = 2, "step"_a = nb::none(), "mode"_a = "exact",
           "group"_a = 0, "groups"_a = 1, "begun"_a = false, "drain"_a = false, "apart"_a = false)
      .def("hold", &TestDeviceRendezvous::Hold)
      .def("release", &TestDeviceRendezvous::Release)
      .def("finish", &TestDeviceRendezvous::Finish, "which"_a, "added"_a = 0.0f, "error"_a = "")
      .def("cancel", &TestDeviceRendezvous::Cancel)
      .def("close", &TestDeviceRendezvous::Close)
      .def("network", &TestDeviceRendezvous::Network, "count"_a)
      .def("given_up", &TestDeviceRendezvous::GivenUp)
      .def("ended", &TestDeviceRendezvous::Ended, "count"_a)
      .def("missing", &TestDeviceRendezvous::Missing, "count"_a)
      .def("failures", &TestDeviceRendezvous::Failures);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
