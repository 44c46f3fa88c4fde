// Lanes of the ranks of a session, in one process and over loopback.

#include "ffi/runtime/lane.h"

#include <atomic>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include "ffi/base/bytes.h"
#include "ffi/net/clock.h"
#include "ffi/net/udp_port.h"
#include "tests/native/binding.h"
#include "tests/native/collective.h"
#include "tests/native/inbox.h"

namespace optireduce::testing {
namespace OR_FILE {

// Chosen: the datagrams of Ethernet, as in EndpointOptions.
constexpr std::size_t kDatagramBytes = 1472;

// A port that refuses every third batch, and notes how the lane treats it.
class BusyPort : public DatagramPort {
 public:
  // May be read when the lane has ended, or on its thread.
  struct Notes {
    std::atomic<bool> broken = false;  // true: it throws
    int refused = 0;
    int wrong = 0;          // sends after a refused one that are not that one, once
    Duration last_sleep{};  // time that the lane asked for with its last Wait() that has an end
  };
  BusyPort(std::unique_ptr<DatagramPort> port, bool refuses, std::shared_ptr<Notes> notes)
      : port_(std::move(port)), refuses_(refuses), notes_(std::move(notes)) {}

  bool Send(Rank to, Pieces pieces, std::size_t datagram_bytes) override {
    std::vector<std::byte> bytes;
    Join(pieces, bytes);
    const bool again = to == to_ && bytes == last_;
    if (last_refused_ != again) ++notes_->wrong;
    last_refused_ = refuses_ && !again && ++sends_ % 3 == 0;
    to_ = to;
    last_ = std::move(bytes);
    if (last_refused_) ++notes_->refused;
    return !last_refused_ && port_->Send(to, pieces, datagram_bytes);
  }
  std::size_t Receive(const std::function<void(std::span<const std::byte>)>& take) override {
    if (notes_->broken) throw std::runtime_error("the port is broken");
    return port_->Receive(take);
  }
  void Wait(Instant until) override {
    if (until != kNever) notes_->last_sleep = until - ClockNow();
    // It may take more at once.
    if (!last_refused_) port_->Wait(until);
  }
  void Wake() override { port_->Wake(); }
  std::size_t batch_max() const override { return port_->batch_max(); }
  std::uint64_t socket_drops() const override { return port_->socket_drops(); }
  SendErrors send_errors() const override { return port_->send_errors(); }

 private:
  const std::unique_ptr<DatagramPort> port_;
  const bool refuses_;
  const std::shared_ptr<Notes> notes_;
  int sends_ = 0;
  bool last_refused_ = false;
  Rank to_;
  std::vector<std::byte> last_;
};

// The end of a call on a rank.
struct LaneEnd {
  std::uint16_t rank = 0;
  std::uint32_t sequence = 0;
  std::string error;
  std::vector<float> values;
  bool on_own_thread = false;  // the thread is the lane's, not the submitter's
  double last_sleep_s = 0;     // the time of BusyPort::Notes; 0: the lane did not sleep
  std::uint64_t counted = 0;   // calls with a result, as the lane's counters say at this moment
};

class TestLanes {
 public:
  TestLanes(std::uint16_t ranks, bool busy) {
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
      notes_.push_back(std::make_shared<BusyPort::Notes>());
      lanes_.push_back(std::make_unique<Lane>(
          std::make_unique<BusyPort>(std::move(ports[r]), busy, notes_.back()),
          Unwrap(Endpoint::Create(options)), kDatagramBytes,
          LaneListener{.ranks_left = [](const auto&, const auto&) {},
                       .lone_call = [](LoneCall) {}}));
    }
  }
  ~TestLanes() {
    Release();
    const nb::gil_scoped_release release;
    for (const auto& lane : lanes_) lane->StartClosing(Status(StatusCode::kCancelled, "the end"));
    lanes_.clear();
  }
  TestLanes(const TestLanes&) = delete;
  TestLanes& operator=(const TestLanes&) = delete;

  void Submit(std::uint16_t rank, const std::vector<float>& values, std::uint32_t sequence,
              const std::string& mode, double deadline_s) {
    auto bucket = std::make_shared<std::vector<float>>(values);
    Submission submission = CallOf(values.size(), sequence, mode, deadline_s);
    submission.leaves = {
        {.data = reinterpret_cast<std::byte*>(bucket->data()), .elements = bucket->size()}};
    auto done = [inbox = inbox_, notes = notes_.at(rank), lane = lanes_.at(rank).get(), bucket,
                 rank, sequence,
                 submitter = std::this_thread::get_id()](const Status& status, const CallStats&) {
      const bool on_own_thread = std::this_thread::get_id() != submitter;
      inbox->Put({.rank = rank,
                  .sequence = sequence,
                  .error = status.message(),
                  .values = *bucket,
                  .on_own_thread = on_own_thread,
                  .last_sleep_s = on_own_thread ? ToSeconds(notes->last_sleep) : 0,
                  .counted = lane->snapshot().counters.calls_completed});
    };
    lanes_.at(rank)->Submit(std::move(submission), std::move(done));
  }
  // The lane's thread does nothing from its return on until Release().
  void Hold(std::uint16_t rank) {
    // A call of a rank outside the session is refused, at once and on the lane's thread.
    Submission refused = CallOf(1, 0, "exact", 1.0);
    refused.spec.name = "refused";
    refused.spec.members = {Rank(static_cast<std::uint16_t>(lanes_.size()))};
    lanes_.at(rank)->Submit(std::move(refused), [held = held_, gate = released_](
                                                    const Status& status, const CallStats&) {
      held->Put(status.message());
      gate.wait();
    });
    held_->Wait(1);
  }
  // The next turn of the lane meets an error.
  void Break(std::uint16_t rank) {
    notes_.at(rank)->broken = true;
    // Wakes it.
    Submission other = CallOf(1, 0, "exact", 20.0);
    other.spec.name = "other";
    lanes_.at(rank)->GiveUp(std::move(other), Status(StatusCode::kCancelled, "not made"));
  }
  void Release() {
    if (!std::exchange(is_released_, true)) release_.set_value();
  }
  void GiveUp(std::uint16_t rank, std::size_t elements, std::uint32_t sequence,
              const std::string& why) {
    lanes_.at(rank)->GiveUp(CallOf(elements, sequence, "exact", 20.0),
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
  // True if the lane's thread answers within a time, in seconds.
  bool Answers(std::uint16_t rank, double within_s) {
    const nb::gil_scoped_release release;
    return lanes_.at(rank)->Examine(ClockNow() + FromSeconds(within_s)).has_value();
  }
  std::uint64_t DatagramsSent(std::uint16_t rank) const {
    return lanes_.at(rank)->snapshot().counters.datagrams_sent;
  }
  // After the end of the lane: batches that its port refused, and those that were not sent again
  // once and first.
  std::pair<int, int> Refusals(std::uint16_t rank) const {
    return {notes_.at(rank)->refused, notes_.at(rank)->wrong};
  }

 private:
  Submission CallOf(std::size_t elements, std::uint32_t sequence, const std::string& mode,
                    double deadline_s) const {
    Collective collective{.name = "x",
                          .mode = mode,
                          .members = std::vector<int>(lanes_.size()),
                          .elements = elements,
                          .description = "x",
                          .deadline_s = deadline_s,
                          .wire_format = "float32"};
    std::iota(collective.members.begin(), collective.members.end(), 0);
    Submission submission;
    submission.spec = collective.ToSpec();
    submission.sequence = Sequence(sequence);
    return submission;
  }

  const std::shared_ptr<Inbox<LaneEnd>> inbox_ = std::make_shared<Inbox<LaneEnd>>();
  const std::shared_ptr<Inbox<std::string>> held_ = std::make_shared<Inbox<std::string>>();
  std::promise<void> release_;
  const std::shared_future<void> released_ = release_.get_future().share();
  bool is_released_ = false;
  std::vector<std::shared_ptr<BusyPort::Notes>> notes_;  // one for each rank
  std::vector<std::unique_ptr<Lane>> lanes_;
};

void Bind(nb::module_& m) {
  nb::class_<LaneEnd>(m, "LaneEnd")
      .def_ro("rank", &LaneEnd::rank)
      .def_ro("sequence", &LaneEnd::sequence)
      .def_ro("error", &LaneEnd::error)
      .def_ro("values", &LaneEnd::values)
      .def_ro("on_own_thread", &LaneEnd::on_own_thread)
      .def_ro("last_sleep_s", &LaneEnd::last_sleep_s)
      .def_ro("counted", &LaneEnd::counted);
  nb::class_<TestLanes>(m, "Lanes")
      .def(nb::init<std::uint16_t, bool>(), "ranks"_a, "busy"_a = false)
      .def("submit", &TestLanes::Submit, "rank"_a, "values"_a, "sequence"_a = 0, "mode"_a = "exact",
           "deadline_s"_a = 20.0)
      .def("hold", &TestLanes::Hold, "rank"_a)
      .def("release", &TestLanes::Release)
      .def("break_port", &TestLanes::Break, "rank"_a)
      .def("refusals", &TestLanes::Refusals, "rank"_a)
      .def("give_up", &TestLanes::GiveUp, "rank"_a, "elements"_a, "sequence"_a, "why"_a)
      .def("cancel", &TestLanes::Cancel, "rank"_a, "why"_a)
      .def("close", &TestLanes::Close, "rank"_a, "why"_a)
      .def("ended", &TestLanes::Ended, "count"_a)
      .def("answers", &TestLanes::Answers, "rank"_a, "within_s"_a)
      .def("datagrams_sent", &TestLanes::DatagramsSent, "rank"_a);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
