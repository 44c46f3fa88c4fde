// Lanes of the ranks of a session, in one process and over loopback.

#include "ffi/runtime/lane.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ffi/net/udp_port.h"
#include "tests/native/binding.h"
#include "tests/native/collective.h"
#include "tests/native/inbox.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace optireduce::testing {
namespace {

// Chosen: the datagrams of Ethernet, as in EndpointOptions.
constexpr std::size_t kDatagramBytes = 1472;

// The end of a call on a rank.
struct LaneEnd {
  std::uint16_t rank = 0;
  std::uint32_t sequence = 0;
  std::string error;
  std::vector<float> values;
  bool on_own_thread = false;  // of the lane, not of the submitter
};

class TestLanes {
 public:
  explicit TestLanes(std::uint16_t ranks) {
    std::vector<PeerAddress> addresses;
    std::vector<std::unique_ptr<UdpPort>> ports;
    for (std::uint16_t r = 0; r < ranks; ++r) {
      ports.push_back(Unwrap(UdpPort::Create({.bind_address = "127.0.0.1"})));
      addresses.push_back({.address = "127.0.0.1", .port = ports.back()->local_port()});
    }
    for (std::uint16_t r = 0; r < ranks; ++r) {
      RaiseUnlessOk(ports[r]->SetPeers(addresses, kDatagramBytes));
      EndpointOptions options;
      options.rank = Rank(r);
      options.world_size = ranks;
      options.datagram_bytes_max = kDatagramBytes;
      options.receive_buffer_bytes = ports[r]->granted_receive_buffer_bytes();
      lanes_.push_back(std::make_unique<Lane>(std::move(ports[r]),
                                              Unwrap(Endpoint::Create(options)), kDatagramBytes,
                                              [](const std::vector<Rank>&) {}));
    }
  }
  ~TestLanes() {
    const nb::gil_scoped_release release;
    for (const auto& lane : lanes_) lane->StartClosing(Status(StatusCode::kCancelled, "the end"));
    lanes_.clear();
  }
  TestLanes(const TestLanes&) = delete;
  TestLanes& operator=(const TestLanes&) = delete;

  void Submit(std::uint16_t rank, const std::vector<float>& values, std::uint32_t sequence,
              const std::string& mode) {
    auto bucket = std::make_shared<std::vector<float>>(values);
    Submission submission = CallOf(values.size(), sequence, mode);
    submission.leaves = {
        {.data = reinterpret_cast<std::byte*>(bucket->data()), .elements = bucket->size()}};
    auto done = [inbox = inbox_, bucket, rank, sequence, submitter = std::this_thread::get_id()](
                    const Status& status, const CallStats&) {
      inbox->Put({.rank = rank,
                  .sequence = sequence,
                  .error = status.message(),
                  .values = *bucket,
                  .on_own_thread = std::this_thread::get_id() != submitter});
    };
    lanes_.at(rank)->Submit(std::move(submission), std::move(done));
  }
  void GiveUp(std::uint16_t rank, std::size_t elements, std::uint32_t sequence,
              const std::string& why) {
    lanes_.at(rank)->GiveUp(CallOf(elements, sequence, "exact"),
                            Status(StatusCode::kCancelled, why));
  }
  void Cancel(std::uint16_t rank, const std::string& why) {
    lanes_.at(rank)->Cancel(Status(StatusCode::kCancelled, why));
  }
  void Close(std::uint16_t rank, const std::string& why) {
    const nb::gil_scoped_release release;
    lanes_.at(rank)->Close(Status(StatusCode::kCancelled, why));
  }
  std::vector<LaneEnd> Ended(std::size_t count) { return inbox_->Wait(count); }
  std::uint64_t DatagramsSent(std::uint16_t rank) const {
    return lanes_.at(rank)->snapshot().counters.datagrams_sent;
  }

 private:
  Submission CallOf(std::size_t elements, std::uint32_t sequence, const std::string& mode) const {
    Collective collective{.name = "x",
                          .mode = mode,
                          .members = std::vector<int>(lanes_.size()),
                          .elements = elements,
                          .description = "x",
                          .deadline_s = 20.0,
                          .wire_format = "float32"};
    std::iota(collective.members.begin(), collective.members.end(), 0);
    Submission submission;
    submission.spec = collective.ToSpec();
    submission.sequence = Sequence(sequence);
    return submission;
  }

  const std::shared_ptr<Inbox<LaneEnd>> inbox_ = std::make_shared<Inbox<LaneEnd>>();
  std::vector<std::unique_ptr<Lane>> lanes_;
};

void Bind(nb::module_& m) {
  nb::class_<LaneEnd>(m, "LaneEnd")
      .def_ro("rank", &LaneEnd::rank)
      .def_ro("sequence", &LaneEnd::sequence)
      .def_ro("error", &LaneEnd::error)
      .def_ro("values", &LaneEnd::values)
      .def_ro("on_own_thread", &LaneEnd::on_own_thread);
  nb::class_<TestLanes>(m, "Lanes")
      .def(nb::init<std::uint16_t>(), "ranks"_a)
      .def("submit", &TestLanes::Submit, "rank"_a, "values"_a, "sequence"_a = 0, "mode"_a = "exact")
      .def("give_up", &TestLanes::GiveUp, "rank"_a, "elements"_a, "sequence"_a, "why"_a)
      .def("cancel", &TestLanes::Cancel, "rank"_a, "why"_a)
      .def("close", &TestLanes::Close, "rank"_a, "why"_a)
      .def("ended", &TestLanes::Ended, "count"_a)
      .def("datagrams_sent", &TestLanes::DatagramsSent, "rank"_a);
}

const Binding binding(&Bind);

}  // namespace
}  // namespace optireduce::testing
