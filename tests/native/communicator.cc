// Communicators of the ranks of a session, in one process and over loopback.

#include "ffi/runtime/communicator.h"

#include <numeric>

#include "tests/native/binding.h"
#include "tests/native/collective.h"
#include "tests/native/inbox.h"

namespace optireduce::testing {
namespace OR_FILE {

// Chosen: the datagrams of Ethernet, as in EndpointOptions.
constexpr std::size_t kDatagramBytes = 1472;

// The end of a call on a rank.
struct CallEnd {
  std::uint16_t rank = 0;
  std::uint32_t sequence = 0;
  std::string error;
  std::vector<float> values;
};

class TestCommunicators {
 public:
  TestCommunicators(std::uint16_t ranks, std::uint16_t lanes)
      : pool_(std::make_shared<CompletionPool>()) {
    for (std::uint16_t r = 0; r < ranks; ++r) {
      CommunicatorOptions options;
      options.name = "test";
      options.rank = Rank(r);
      options.world_size = ranks;
      options.bind_address = "127.0.0.1";
      options.lanes = lanes;
      options.receive_buffer_bytes = std::size_t{1} << 20;
      options.peer_timeout = std::chrono::seconds(30);
      options.mismatch_timeout = std::chrono::seconds(30);
      options.deadline = std::chrono::seconds(20);
      options.deadline_max = std::chrono::seconds(20);
      ranks_.push_back(Unwrap(Communicator::Create(options, pool_)));
      addresses_.push_back({.address = "127.0.0.1", .ports = ranks_.back()->ports()});
    }
  }
  ~TestCommunicators() {
    for (std::uint16_t r = 0; r < ranks_.size(); ++r) Close(r, "the test is over");
    const nb::gil_scoped_release release;
    ranks_.clear();
    pool_.reset();
  }
  TestCommunicators(const TestCommunicators&) = delete;
  TestCommunicators& operator=(const TestCommunicators&) = delete;

  // Connects with the addresses of this many ranks; raises errors.
  void Connect(std::uint16_t rank, std::size_t addresses) {
    std::vector<RankAddress> given = addresses_;
    given.resize(addresses, addresses_.front());
    RaiseUnlessOk(ranks_.at(rank)->Connect(given, kDatagramBytes,
                                           ranks_[rank]->granted_receive_buffer_bytes()));
  }
  void Submit(std::uint16_t rank, const std::vector<float>& values, std::uint32_t sequence,
              const std::string& mode) {
    auto bucket = std::make_shared<std::vector<float>>(values);
    Collective collective{.name = "x",
                          .mode = mode,
                          .members = std::vector<int>(ranks_.size()),
                          .elements = values.size(),
                          .description = "x",
                          .deadline_s = 20.0,
                          .wire_format = "float32"};
    std::iota(collective.members.begin(), collective.members.end(), 0);
    Submission submission;
    submission.spec = collective.ToSpec();
    submission.sequence = Sequence(sequence);
    submission.leaves = {
        {.data = reinterpret_cast<std::byte*>(bucket->data()), .elements = bucket->size()}};
    ranks_.at(rank)->Submit(std::move(submission), [inbox = inbox_, bucket, rank, sequence](
                                                       const Status& status, const CallStats&) {
      inbox->Put(
          {.rank = rank, .sequence = sequence, .error = status.message(), .values = *bucket});
    });
  }
  // The call of one of the two devices of a rank.
  void Start(std::uint16_t rank, std::uint32_t device, const std::vector<float>& values) {
    auto bucket = std::make_shared<std::vector<float>>(values);
    DeviceCall call;
    call.spec.name = call.spec.description = call.key = "devices";
    call.spec.elements = values.size();
    for (std::uint16_t r = 0; r < ranks_.size(); ++r) call.spec.members.emplace_back(r);
    call.local_ranks = {2u * rank, 2u * rank + 1};
    call.rank = call.local_ranks.at(device);
    call.leaves = {
        {.data = reinterpret_cast<std::byte*>(bucket->data()), .elements = bucket->size()}};
    call.done = [inbox = inbox_, bucket, rank](const DeviceResult& result) {
      inbox->Put({.rank = rank,
                  .sequence = result.sequence.value(),
                  .error = result.status.message(),
                  .values = *bucket});
    };
    ranks_.at(rank)->Start(std::move(call));
  }
  void Cancel(std::uint16_t rank, const std::string& why) { ranks_.at(rank)->Cancel(why); }
  void Close(std::uint16_t rank, const std::string& why) {
    const nb::gil_scoped_release release;
    ranks_.at(rank)->Close(why);
  }
  std::vector<CallEnd> Ended(std::size_t count) { return inbox_->Wait(count); }
  nb::dict CountersOf(std::uint16_t rank) const {
    nb::dict counters;
    for (const auto& [name, value] : ranks_.at(rank)->counters()) counters[name.c_str()] = value;
    return counters;
  }
  // A call of a rank without peers: the completed calls that its end finds in the counters.
  std::uint64_t CountedAtItsEnd() {
    const auto counted = std::make_shared<Inbox<std::uint64_t>>();
    ranks_.at(0)->Submit({}, [counted, rank = ranks_[0].get()](const Status&, const CallStats&) {
      for (const auto& [name, value] : rank->counters()) {
        if (name == "calls_completed") counted->Put(value);
      }
    });
    return counted->Wait(1).front();
  }
  // Its report, as JSON.
  std::string Examine(std::uint16_t rank) const {
    const nb::gil_scoped_release release;
    return ToJson(ranks_.at(rank)->Examine());
  }
  void ServeStatus(std::uint16_t rank, const std::string& folder) {
    RaiseUnlessOk(ranks_.at(rank)->ServeStatus(folder));
  }
  std::size_t Ports(std::uint16_t rank) const { return ranks_.at(rank)->ports().size(); }

 private:
  std::shared_ptr<CompletionPool> pool_;
  const std::shared_ptr<Inbox<CallEnd>> inbox_ = std::make_shared<Inbox<CallEnd>>();
  std::vector<std::shared_ptr<Communicator>> ranks_;
  std::vector<RankAddress> addresses_;
};

CommunicatorOptions OptionsOf(std::uint16_t rank) {
  CommunicatorOptions options;
  options.name = "test";
  options.rank = Rank(rank);
  options.world_size = 8;
  return options;
}

// Returns for each rank whether it is on the same host, given the addresses of all ranks.
std::vector<bool> SameHosts(std::uint16_t rank, const std::vector<std::string>& addresses) {
  std::vector<RankAddress> ranks;
  for (const std::string& address : addresses) ranks.push_back({.address = address, .ports = {1}});
  return EndpointOptionsOf(OptionsOf(rank), 0, ranks, kDatagramBytes, 0).same_host;
}

// Returns the late budget of an endpoint.
double LateBudget(double late_budget, double deadline_s) {
  CommunicatorOptions options = OptionsOf(0);
  options.late_budget = late_budget;
  options.deadline = FromSeconds(deadline_s);
  const std::vector<RankAddress> ranks(1);
  return EndpointOptionsOf(options, 0, ranks, kDatagramBytes, 0).late_budget;
}

// Returns the seed of the faults of a lane.
std::uint64_t FaultSeed(std::uint64_t seed, std::uint16_t rank, std::uint16_t lane) {
  CommunicatorOptions options = OptionsOf(rank);
  options.faults = Faults{.seed = seed};
  return FaultsOf(options, lane).value().seed;
}

bool HasFaults(std::optional<std::uint16_t> only, std::uint16_t lane) {
  CommunicatorOptions options = OptionsOf(0);
  options.faults = Faults{.lane = only};
  return FaultsOf(options, lane).has_value();
}

// Seconds of the two stages.
std::pair<double, double> StageDeadlines(double deadline_s, double deadline_max_s) {
  CommunicatorOptions options = OptionsOf(0);
  options.deadline = FromSeconds(deadline_s);
  options.deadline_max = FromSeconds(deadline_max_s);
  CollectiveSpec spec;
  SetDeadlines(options, spec);
  return {ToSeconds(spec.reduce_scatter_deadline), ToSeconds(spec.all_gather_deadline)};
}

void Bind(nb::module_& m) {
  nb::class_<CallEnd>(m, "CallEnd")
      .def_ro("rank", &CallEnd::rank)
      .def_ro("sequence", &CallEnd::sequence)
      .def_ro("error", &CallEnd::error)
      .def_ro("values", &CallEnd::values);
  nb::class_<TestCommunicators>(m, "Communicators")
      .def(nb::init<std::uint16_t, std::uint16_t>(), "ranks"_a, "lanes"_a = 1)
      .def("connect", &TestCommunicators::Connect, "rank"_a, "addresses"_a)
      .def("submit", &TestCommunicators::Submit, "rank"_a, "values"_a, "sequence"_a = 0,
           "mode"_a = "exact")
      .def("start", &TestCommunicators::Start, "rank"_a, "device"_a, "values"_a)
      .def("cancel", &TestCommunicators::Cancel, "rank"_a, "why"_a)
      .def("close", &TestCommunicators::Close, "rank"_a, "why"_a)
      .def("ended", &TestCommunicators::Ended, "count"_a)
      .def("counters", &TestCommunicators::CountersOf, "rank"_a)
      .def("counted_at_its_end", &TestCommunicators::CountedAtItsEnd)
      .def("examine", &TestCommunicators::Examine, "rank"_a)
      .def("serve_status", &TestCommunicators::ServeStatus, "rank"_a, "folder"_a)
      .def("ports", &TestCommunicators::Ports, "rank"_a);
  m.def("same_hosts", &SameHosts, "rank"_a, "addresses"_a);
  m.def("endpoint_late_budget", &LateBudget, "late_budget"_a, "deadline_s"_a);
  m.def("fault_seed", &FaultSeed, "seed"_a, "rank"_a, "lane"_a);
  m.def("has_faults", &HasFaults, "only"_a.none(), "lane"_a);
  m.def("stage_deadlines", &StageDeadlines, "deadline_s"_a, "deadline_max_s"_a);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
