// Counts memory allocations of the layers below a lane: ports and endpoints of a few ranks, driven
// in one thread and in virtual time, with a counting operator new.

#include <algorithm>
#include <cstdlib>
#include <new>

#include "ffi/base/check.h"
#include "ffi/net/udp_port.h"
#include "ffi/protocol/endpoint.h"
#include "tests/native/binding.h"

namespace {

// The allocations of this thread in this module: the functions below replace those of the library.
thread_local std::uint64_t allocations = 0;

}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace optireduce::testing {
namespace OR_FILE {

// Chosen: the datagrams of Ethernet, as in EndpointOptions.
constexpr std::size_t kDatagramBytes = 1472;
// Time between two turns of all ranks. Chosen: less than any interval of the protocol.
constexpr Duration kTurn = std::chrono::microseconds(10);
// Chosen: never reached, and a bound for a test that hangs.
constexpr Duration kDeadline = std::chrono::seconds(20);

class Session {
 public:
  explicit Session(std::uint16_t ranks) {
    std::vector<PeerAddress> addresses;
    for (std::uint16_t r = 0; r < ranks; ++r) {
      auto port = UdpPort::Create({.bind_address = "127.0.0.1"});
      OR_CHECK(port.ok());
      addresses.push_back({.address = "127.0.0.1", .port = port.value()->local_port()});
      ranks_.push_back({.port = std::move(port.value()), .endpoint = nullptr});
    }
    for (std::uint16_t r = 0; r < ranks; ++r) {
      UdpPort& port = *ranks_[r].port;
      OR_CHECK(port.SetPeers(addresses, kDatagramBytes).ok());
      EndpointOptions options;
      options.rank = Rank(r);
      options.world_size = ranks;
      options.datagram_bytes_max = kDatagramBytes;
      options.receive_buffer_bytes = port.granted_receive_buffer_bytes();
      auto endpoint = Endpoint::Create(options);
      OR_CHECK(endpoint.ok());
      ranks_[r].endpoint = std::move(endpoint.value());
      buffer_.resize(port.batch_max() > 1 ? kUdpPayloadBytesMax : kDatagramBytes);
    }
  }

  // One call of all ranks, from the submission to the last result.
  void Call(CollectiveSpec spec, std::uint32_t sequence) {
    for (std::uint16_t r = 0; r < ranks_.size(); ++r) spec.members.push_back(Rank(r));
    for (RankOf& rank : ranks_) {
      rank.values.assign(spec.elements, 1.0f);
      Submission submission;
      submission.spec = spec;
      submission.sequence = Sequence(sequence);
      submission.leaves = {
          {.data = reinterpret_cast<std::byte*>(rank.values.data()), .elements = spec.elements}};
      OR_CHECK(rank.endpoint->Submit(now_, std::move(submission)).ok());
    }
    const Instant end = now_ + kDeadline;
    for (std::size_t ended = 0; ended < ranks_.size();) {
      OR_CHECK(now_ < end);
      for (RankOf& rank : ranks_) ended += Turn(rank) ? 1 : 0;
      now_ += kTurn;
    }
    for (const RankOf& rank : ranks_) {
      OR_CHECK(std::ranges::count(rank.values, static_cast<float>(ranks_.size())) ==
               static_cast<std::ptrdiff_t>(spec.elements));
    }
  }

  std::uint64_t datagrams_sent() const {
    std::uint64_t sent = 0;
    for (const RankOf& rank : ranks_) sent += rank.endpoint->counters().datagrams_sent;
    return sent;
  }

 private:
  struct RankOf {
    std::unique_ptr<UdpPort> port;
    std::unique_ptr<Endpoint> endpoint;
    std::vector<float> values{};
  };

  // One turn of a lane. True if the call has ended.
  bool Turn(RankOf& rank) {
    Endpoint& endpoint = *rank.endpoint;
    rank.port->Receive([this, &endpoint](std::span<const std::byte> datagram) {
      endpoint.HandleDatagram(now_, datagram);
    });
    if (now_ >= endpoint.PollTimeout()) endpoint.HandleTimeout(now_);
    while (const auto next = endpoint.PollTransmit(now_, buffer_, rank.port->batch_max())) {
      OR_CHECK(rank.port->Send(next->to, next->pieces, next->datagram_bytes));
    }
    const std::optional<CallDone> done = endpoint.PollEvent();
    OR_CHECK(!done || done->status.ok());
    return done.has_value();
  }

  Instant now_{};
  std::vector<RankOf> ranks_;
  std::vector<std::byte> buffer_;
};

// (datagrams sent, allocations) of some calls, after others of the same collective.
std::pair<std::uint64_t, std::uint64_t> AllocationsOf(int reduce_scatter, int all_gather,
                                                      std::uint16_t ranks, std::uint64_t elements,
                                                      std::uint32_t calls_before,
                                                      std::uint32_t calls) {
  Session session(ranks);
  CollectiveSpec spec;
  spec.name = "counted";
  spec.elements = elements;
  spec.reduce_scatter = static_cast<LatePolicy>(reduce_scatter);
  spec.all_gather = static_cast<LatePolicy>(all_gather);
  spec.reduce_scatter_deadline = spec.all_gather_deadline = kDeadline;
  std::uint32_t sequence = 0;
  for (std::uint32_t i = 0; i < calls_before; ++i) session.Call(spec, sequence++);
  const std::uint64_t allocations_before = allocations;
  const std::uint64_t datagrams_before = session.datagrams_sent();
  for (std::uint32_t i = 0; i < calls; ++i) session.Call(spec, sequence++);
  return {session.datagrams_sent() - datagrams_before, allocations - allocations_before};
}

// The counter's result for this many separate allocations.
std::uint64_t CountedOf(std::size_t count) {
  const std::uint64_t before = allocations;
  std::vector<std::string> texts;
  texts.reserve(count);
  // Longer than the strings that need no allocation.
  for (std::size_t i = 0; i < count; ++i) texts.emplace_back(100, 'x');
  return allocations - before;
}

void Bind(nb::module_& m) {
  m.def("allocations", &AllocationsOf, "reduce_scatter"_a, "all_gather"_a, "ranks"_a, "elements"_a,
        "calls_before"_a, "calls"_a);
  m.def("counted_allocations", &CountedOf, "count"_a);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
