// The network of a simulated session: every rank has an up-link to one switch, the switch has a
// byte-bounded output queue towards every rank, and the path between them has faults.
//
//   rank 0 ==up-link==> +--------+ ==output queue and down-link==> rank 0
//   rank 1 ==up-link==> | switch | ==output queue and down-link==> rank 1
//   rank 2 ==up-link==> +--------+ ==output queue and down-link==> rank 2
//
// Faults occur where an up-link enters the switch; injected datagrams enter there too.

#ifndef FFI_SIM_NETWORK_H_
#define FFI_SIM_NETWORK_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/prng.h"
#include "ffi/base/time.h"
#include "ffi/sim/cross_traffic.h"
#include "ffi/sim/event_queue.h"
#include "ffi/sim/link.h"
#include "ffi/sim/tcp_bursts.h"

namespace optireduce {

// Bytes of a datagram on an Ethernet in addition to its UDP payload.
// Source: RFC 768 (UDP, 8), RFC 791 (IPv4, 20), IEEE 802.3 (header 14, check 4, preamble 8,
// gap 12).
inline constexpr std::size_t kWireOverheadBytes = 66;

// X(name, meaning): every possible fate of a datagram, counted.
#define OPTIREDUCE_FAULTS(X)                                                     \
  X(lost, "lost alone")                                                          \
  X(lost_in_burst, "lost because everything from its rank was lost for a while") \
  X(duplicated, "arrived twice or more; counts the copies")                      \
  X(reordered, "held back by a random time")                                     \
  X(stalled, "times that an up-link stood still")                                \
  X(held, "times that nothing reached a rank for a while")                       \
  X(corrupted, "arrived with flipped bits")                                      \
  X(truncated, "arrived shorter")                                                \
  X(extended, "arrived longer")                                                  \
  X(foreign, "injected: of another session, or sealed with another secret")      \
  X(garbage, "injected: random bytes")                                           \
  X(replayed, "injected: an old datagram again")                                 \
  X(misdirected, "injected: an old datagram to another rank than its own")       \
  X(cut, "to or from a rank that is cut off")                                    \
  X(too_long, "longer than a link takes")                                        \
  X(parted, "from one side of a parted network to the other")                    \
  X(queue_full_up, "dropped at an up-link")                                      \
  X(queue_full_switch, "dropped at an output queue of the switch")

struct NetworkFaults {
#define OPTIREDUCE_DECLARE_FAULT(name, meaning) std::uint64_t name = 0;
  OPTIREDUCE_FAULTS(OPTIREDUCE_DECLARE_FAULT)
#undef OPTIREDUCE_DECLARE_FAULT
};

// Probabilities per datagram in parts per million; times are the maximum of one event.
struct FaultOptions {
  std::uint32_t loss_ppm = 0;
  std::uint32_t burst_ppm = 0;
  Duration burst{};
  std::uint32_t duplicate_ppm = 0;
  std::uint32_t reorder_ppm = 0;
  Duration reorder{};  // the longest delay of reordering, and of a copy
  std::uint32_t stall_ppm = 0;
  Duration stall{};
  // Nothing reaches a rank for a time, as on a virtual machine that does not run: its links carry
  // on.
  std::uint32_t hold_ppm = 0;
  Duration hold{};
  std::uint32_t corrupt_ppm = 0;
  std::uint32_t truncate_ppm = 0;
  std::uint32_t extend_ppm = 0;
  std::uint32_t foreign_ppm = 0;
  std::uint32_t garbage_ppm = 0;
  std::uint32_t replay_ppm = 0;
  std::uint32_t misdirect_ppm = 0;
  Instant end = kNever;  // no fault starts later; datagrams under way still arrive
};

// The latency between an up-link and the switch, as caused by a queue of other traffic: log-normal,
// drawn for each pair of ranks and held for a time. Datagrams of a pair keep their order.
struct LatencyOptions {
  Duration median{};  // 0: no latency
  double tail = 1;    // the 99th percentile over the median
  Duration hold = std::chrono::milliseconds(1);
};

struct NetworkOptions {
  std::uint64_t seed = 0;
  std::vector<LinkOptions> up;    // one for each rank
  std::vector<LinkOptions> down;  // one for each rank
  FaultOptions faults;
  LatencyOptions latency;
  std::optional<CrossTrafficOptions> cross_traffic;
  Rank cross_traffic_rank;  // shares the down-link of this rank
  std::optional<TcpBurstOptions> tcp_bursts;
};

// Origin of a datagram, for the rank that receives it.
enum class Origin : std::uint8_t { kGenuine, kCopy, kDamaged, kInjected };

struct Arrival {
  Rank from;  // actual or claimed sender
  Rank to;
  Origin origin = Origin::kGenuine;
  std::span<const std::byte> datagram;  // valid until the next call of Step
};

class Network {
 public:
  explicit Network(const NetworkOptions& options);

  // Datagrams of another session, for injection.
  void AddForeign(std::span<const std::byte> datagram);

  // True if the up-link accepts this many bytes in this many datagrams without dropping any.
  bool HasRoom(Instant now, Rank from, std::size_t bytes, std::size_t datagrams) const;
  Instant RoomAt(Instant now, Rank from, std::size_t bytes, std::size_t datagrams) const;

  void Send(Instant now, Rank from, Rank to, std::span<const std::byte> datagram);

  // While a rank is cut off, its links pass no datagram in either direction.
  void SetCut(Rank rank, bool cut) { cut_[rank.index()] = cut; }

  // From this call on, longer datagrams do not pass the links of the node, or only its up-link if
  // `one_way`.
  void SetMtu(Rank rank, std::size_t bytes, bool one_way) {
    mtu_up_[rank.index()] = bytes;
    if (!one_way) mtu_down_[rank.index()] = bytes;
  }
  // From this call on, longer datagrams do not pass from one node to another.
  void SetPathMtu(Rank from, Rank to, std::size_t bytes) { mtu_of_path_[{from, to}] = bytes; }

  // From now on no datagram passes from the nodes of `side` to the others, nor back unless
  // `one_way`. An empty side ends the partition.
  void Part(std::vector<bool> side, bool one_way) {
    side_ = std::move(side);
    one_way_ = one_way;
  }

  // Time of the next Step; kNever if no event is pending.
  Instant next() const { return std::min(events_.next(), NextForeign()); }
  // Handles the next due event; returns a datagram that arrives at its rank.
  std::optional<Arrival> Step();

  const NetworkFaults& faults() const { return faults_; }
  // Bytes on the wire of the down-link with cross traffic, while it lasts: of that traffic and of
  // the session.
  std::uint64_t cross_traffic_bytes() const {
    return cross_traffic_ ? cross_traffic_->carried_bytes() : 0;
  }
  std::uint64_t bytes_beside_cross_traffic() const { return bytes_beside_cross_traffic_; }
  std::uint64_t in_flight() const { return events_.size(); }
  // True if every datagram that entered is delivered, under way, or counted as dropped under one
  // name.
  bool IsConserved() const;

 private:
  struct Flight {
    std::size_t slot;
    Rank from;
    Rank to;
    Origin origin;
    bool at_switch;  // arrives at the switch next, otherwise at the rank
  };

  // Time of the next step of other traffic.
  Instant NextForeign() const {
    return std::min(cross_traffic_ ? cross_traffic_->next() : kNever,
                    tcp_bursts_ ? tcp_bursts_->next() : kNever);
  }
  void StepForeign();
  bool Parted(Rank from, Rank to) const;
  // Arrival time of a datagram that enters the path at `at`.
  Instant AfterLatency(Instant at, Rank from, Rank to);
  Duration Random(Duration max);
  std::size_t Store(std::span<const std::byte> bytes);
  void PushArrival(Instant at, std::span<const std::byte> bytes, Rank from, Rank to, Origin origin);
  bool IsLost(Instant now, Rank from);
  // Time at which a datagram reaches its rank that has left the down-link now.
  Instant AfterHold(Instant now, Rank to);
  Origin Damage(std::vector<std::byte>& bytes);
  // The counter of the reason for which the path takes no such datagram; null if it does.
  std::uint64_t* FindBlock(Rank from, Rank to, std::size_t bytes);
  // Faults after the up-link, which the datagram leaves at `at`.
  void SendFaulty(Instant now, Instant at, Rank from, Rank to, std::span<const std::byte> datagram);
  // The switch passes the datagram on.
  void Forward(Instant now, Flight flight);
  void Inject(Instant at, Rank from, Rank to);
  void InjectOld(Instant at, Rank to);
  void Remember(std::span<const std::byte> datagram, Rank from, Rank to);

  FaultOptions options_;
  Prng prng_;
  Prng hold_prng_;
  LatencyOptions latency_;
  double sigma_;  // deviation of the logarithm of the latency
  std::uint64_t latency_seed_;
  std::vector<Instant> last_at_end_;  // one for each pair of ranks; used with a latency only
  std::vector<Link> up_;
  std::vector<Link> down_;
  std::optional<CrossTraffic> cross_traffic_;
  Rank cross_traffic_rank_;
  std::uint64_t bytes_beside_cross_traffic_ = 0;
  std::optional<TcpBursts> tcp_bursts_;
  std::vector<Instant> burst_until_;  // one for each sender
  std::vector<Instant> held_until_;   // one for each receiver
  std::vector<bool> cut_;             // one for each rank
  std::vector<std::size_t> mtu_up_;   // one for each rank: the longest datagram that passes
  std::vector<std::size_t> mtu_down_;
  std::map<std::pair<Rank, Rank>, std::size_t> mtu_of_path_;
  std::vector<bool> side_;  // one for each rank
  bool one_way_ = false;
  EventQueue<Flight> events_;
  std::vector<std::vector<std::byte>> slots_;
  std::vector<std::size_t> free_slots_;
  std::optional<std::size_t> lent_slot_;  // the slot of the delivery that Step returned last
  std::vector<std::byte> scratch_;
  std::vector<std::vector<std::byte>> foreign_;
  struct Old {
    std::vector<std::byte> bytes;
    Rank from;
    Rank to;
  };
  std::vector<Old> old_;
  NetworkFaults faults_;
  std::uint64_t sent_ = 0;
  std::uint64_t delivered_ = 0;
};

}  // namespace optireduce

#endif  // FFI_SIM_NETWORK_H_
