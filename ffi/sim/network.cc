#include "ffi/sim/network.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Old datagrams kept for replay. Chosen: more than those of one call of a small scenario.
constexpr std::size_t kOldMax = 256;
// Chosen: one datagram in four is kept, so that old ones of many calls are available.
constexpr std::uint64_t kRememberOneIn = 4;
// Chosen: a tag must detect one flipped bit as well as several.
constexpr std::uint64_t kFlippedBitsMax = 4;
// Chosen: some results stay below the session's largest datagram, some do not.
constexpr std::uint64_t kExtraBytesMax = 64;
// Chosen: longer than any datagram of a session on an Ethernet.
constexpr std::uint64_t kGarbageBytesMax = 2000;
// Chosen: includes copies of copies.
constexpr std::uint64_t kCopiesMax = 3;

// The 99th percentile of the standard normal distribution.
constexpr double kNormal99 = 2.3263478740408408;
// Separates the draws of latencies from those of faults. Chosen: any constant.
constexpr std::uint64_t kLatencySalt = 0x6C6174;

// Separates the draws of holds from those of other faults. Chosen: any constant.
constexpr std::uint64_t kHoldSalt = 0x686F6C64;

// Uniform in (0, 1).
double Uniform(std::uint64_t hash) { return (static_cast<double>(hash >> 12) + 0.5) * 0x1p-52; }

Duration RandomBelow(Prng& prng, Duration max) {
  return Duration(
      static_cast<Duration::rep>(prng.Below(static_cast<std::uint64_t>(max.count()) + 1)));
}

}  // namespace

Network::Network(const NetworkOptions& options)
    : options_(options.faults),
      prng_(options.seed),
      hold_prng_(Mix(options.seed ^ kHoldSalt)),
      latency_(options.latency),
      sigma_(std::log(options.latency.tail) / kNormal99),
      latency_seed_(Mix(options.seed ^ kLatencySalt)),
      cross_traffic_rank_(options.cross_traffic_rank),
      burst_until_(options.up.size()),
      held_until_(options.up.size()),
      cut_(options.up.size()),
      mtu_up_(options.up.size(), SIZE_MAX),
      mtu_down_(options.up.size(), SIZE_MAX) {
  OR_CHECK(options.up.size() == options.down.size());
  OR_CHECK(options.latency.tail >= 1 && options.latency.hold > Duration::zero());
  if (latency_.median > Duration::zero()) {
    last_at_end_.resize(options.up.size() * options.up.size());
  }
  if (options.cross_traffic) cross_traffic_.emplace(*options.cross_traffic);
  if (options.tcp_bursts) tcp_bursts_.emplace(*options.tcp_bursts, options.down.size());
  for (const LinkOptions& link : options.up) up_.emplace_back(link);
  for (const LinkOptions& link : options.down) down_.emplace_back(link);
}

void Network::AddForeign(std::span<const std::byte> datagram) {
  foreign_.emplace_back(datagram.begin(), datagram.end());
}

bool Network::HasRoom(Instant now, Rank from, std::size_t bytes, std::size_t datagrams) const {
  return up_[from.index()].HasRoom(now, bytes + datagrams * kWireOverheadBytes);
}

Instant Network::RoomAt(Instant now, Rank from, std::size_t bytes, std::size_t datagrams) const {
  return up_[from.index()].RoomAt(now, bytes + datagrams * kWireOverheadBytes);
}

Duration Network::Random(Duration max) { return RandomBelow(prng_, max); }

std::size_t Network::Store(std::span<const std::byte> bytes) {
  if (free_slots_.empty()) {
    free_slots_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::size_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].assign(bytes.begin(), bytes.end());
  return slot;
}

void Network::PushArrival(Instant at, std::span<const std::byte> bytes, Rank from, Rank to,
                          Origin origin) {
  events_.Push(at, Flight{Store(bytes), from, to, origin, true});
}

bool Network::IsLost(Instant now, Rank from) {
  Instant& burst_until = burst_until_[from.index()];
  if (now >= burst_until && prng_.Chance(options_.burst_ppm)) {
    burst_until = now + Random(options_.burst);
  }
  if (now < burst_until) {
    ++faults_.lost_in_burst;
    return true;
  }
  if (prng_.Chance(options_.loss_ppm)) {
    ++faults_.lost;
    return true;
  }
  return false;
}

Instant Network::AfterHold(Instant now, Rank to) {
  Instant& held_until = held_until_[to.index()];
  if (now > held_until && now < options_.end && hold_prng_.Chance(options_.hold_ppm)) {
    ++faults_.held;
    held_until = now + RandomBelow(hold_prng_, options_.hold);
  }
  return std::max(now, held_until);
}

Origin Network::Damage(std::vector<std::byte>& bytes) {
  Origin origin = Origin::kGenuine;
  if (!bytes.empty() && prng_.Chance(options_.corrupt_ppm)) {
    ++faults_.corrupted;
    origin = Origin::kDamaged;
    // Half of them in the header, whose fields can be wrong in more ways than a payload.
    for (std::uint64_t flips = 1 + prng_.Below(kFlippedBitsMax); flips > 0; --flips) {
      const std::size_t reach =
          prng_.Below(2) == 0 ? std::min(kHeaderBytes, bytes.size()) : bytes.size();
      bytes[prng_.Below(reach)] ^= static_cast<std::byte>(1u << prng_.Below(8));
    }
  }
  if (!bytes.empty() && prng_.Chance(options_.truncate_ppm)) {
    ++faults_.truncated;
    origin = Origin::kDamaged;
    bytes.resize(prng_.Below(bytes.size()));
  }
  if (prng_.Chance(options_.extend_ppm)) {
    ++faults_.extended;
    origin = Origin::kDamaged;
    for (std::uint64_t extra = 1 + prng_.Below(kExtraBytesMax); extra > 0; --extra) {
      bytes.push_back(static_cast<std::byte>(prng_.Below(256)));
    }
  }
  return origin;
}

void Network::Inject(Instant at, Rank from, Rank to) {
  if (!foreign_.empty() && prng_.Chance(options_.foreign_ppm)) {
    ++faults_.foreign;
    PushArrival(at, foreign_[prng_.Below(foreign_.size())], from, to, Origin::kInjected);
  }
  if (prng_.Chance(options_.garbage_ppm)) {
    ++faults_.garbage;
    scratch_.resize(prng_.Below(kGarbageBytesMax));
    for (std::byte& byte : scratch_) byte = static_cast<std::byte>(prng_.Below(256));
    PushArrival(at, scratch_, from, to, Origin::kInjected);
  }
  if (!old_.empty()) InjectOld(at, to);
}

void Network::InjectOld(Instant at, Rank to) {
  if (prng_.Chance(options_.replay_ppm)) {
    ++faults_.replayed;
    const Old& old = old_[prng_.Below(old_.size())];
    PushArrival(at, old.bytes, old.from, old.to, Origin::kInjected);
  }
  if (prng_.Chance(options_.misdirect_ppm)) {
    ++faults_.misdirected;
    const Old& old = old_[prng_.Below(old_.size())];
    // Half of the time a reflection to its own sender, the misdirection most likely to be accepted.
    PushArrival(at, old.bytes, old.from, prng_.Below(2) == 0 ? old.from : to, Origin::kInjected);
  }
}

void Network::Remember(std::span<const std::byte> datagram, Rank from, Rank to) {
  if (options_.replay_ppm == 0 && options_.misdirect_ppm == 0) return;
  if (prng_.Below(kRememberOneIn) != 0) return;
  Old old{{datagram.begin(), datagram.end()}, from, to};
  if (old_.size() < kOldMax) {
    old_.push_back(std::move(old));
  } else {
    old_[prng_.Below(kOldMax)] = std::move(old);
  }
}

bool Network::Parted(Rank from, Rank to) const {
  if (side_.empty()) return false;
  const bool sends = side_[from.index()];
  const bool hears = side_[to.index()];
  return sends != hears && (sends || !one_way_);
}

Instant Network::AfterLatency(Instant at, Rank from, Rank to) {
  const std::size_t pair = from.index() * up_.size() + to.index();
  const std::uint64_t way = Mix(latency_seed_ + pair);
  // The draws of different pairs end at different times.
  const auto hold = static_cast<std::uint64_t>(latency_.hold.count());
  const auto since = static_cast<std::uint64_t>(at.time_since_epoch().count());
  const std::uint64_t draw = Mix(way ^ (since + way % hold) / hold);
  // Source: Box and Muller, Annals of Mathematical Statistics 29, 1958.
  const double normal = std::sqrt(-2 * std::log(Uniform(draw))) *
                        std::cos(2 * std::numbers::pi * Uniform(Mix(draw + 1)));
  const double ns = static_cast<double>(latency_.median.count()) * std::exp(sigma_ * normal);
  Instant& last = last_at_end_[pair];
  last = std::max(last, at + Duration(static_cast<Duration::rep>(ns)));
  return last;
}

std::uint64_t* Network::FindBlock(Rank from, Rank to, std::size_t bytes) {
  if (cut_[from.index()]) return &faults_.cut;
  if (Parted(from, to)) return &faults_.parted;
  std::size_t mtu = std::min(mtu_up_[from.index()], mtu_down_[to.index()]);
  const auto of_path = mtu_of_path_.find({from, to});
  if (of_path != mtu_of_path_.end()) mtu = std::min(mtu, of_path->second);
  return bytes > mtu ? &faults_.too_long : nullptr;
}

void Network::Send(Instant now, Rank from, Rank to, std::span<const std::byte> datagram) {
  OR_CHECK(from.index() < up_.size() && to.index() < up_.size());
  ++sent_;
  if (std::uint64_t* const reason = FindBlock(from, to, datagram.size())) {
    ++*reason;
    return;
  }
  const bool faulty = now < options_.end;
  Link& up = up_[from.index()];
  if (faulty && prng_.Chance(options_.stall_ppm)) {
    ++faults_.stalled;
    up.Stall(now + Random(options_.stall));
  }
  std::optional<Instant> at_switch = up.Offer(now, datagram.size() + kWireOverheadBytes);
  if (!at_switch) {
    ++faults_.queue_full_up;
    return;
  }
  if (!last_at_end_.empty()) at_switch = AfterLatency(*at_switch, from, to);
  if (!faulty) {
    PushArrival(*at_switch, datagram, from, to, Origin::kGenuine);
    return;
  }
  SendFaulty(now, *at_switch, from, to, datagram);
}

void Network::SendFaulty(Instant now, Instant at, Rank from, Rank to,
                         std::span<const std::byte> datagram) {
  Inject(at, from, to);
  Remember(datagram, from, to);
  if (prng_.Chance(options_.duplicate_ppm)) {
    for (std::uint64_t copies = 1 + prng_.Below(kCopiesMax); copies > 0; --copies) {
      ++faults_.duplicated;
      PushArrival(at + Random(options_.reorder), datagram, from, to, Origin::kCopy);
    }
  }
  if (IsLost(now, from)) return;
  scratch_.assign(datagram.begin(), datagram.end());
  const Origin origin = Damage(scratch_);
  if (prng_.Chance(options_.reorder_ppm)) {
    ++faults_.reordered;
    at += Random(options_.reorder);
  }
  PushArrival(at, scratch_, from, to, origin);
}

void Network::Forward(Instant now, Flight flight) {
  const std::size_t bytes = slots_[flight.slot].size() + kWireOverheadBytes;
  const std::optional<Instant> arrives = down_[flight.to.index()].Offer(now, bytes);
  if (!arrives) {
    ++faults_.queue_full_switch;
    free_slots_.push_back(flight.slot);
    return;
  }
  if (flight.to == cross_traffic_rank_ && cross_traffic_ && cross_traffic_->active(now))
    bytes_beside_cross_traffic_ += bytes;
  flight.at_switch = false;
  events_.Push(*arrives, flight);
}

void Network::StepForeign() {
  if (cross_traffic_ && cross_traffic_->next() == NextForeign()) {
    cross_traffic_->Step(down_[cross_traffic_rank_.index()]);
  } else {
    tcp_bursts_->Step(down_);
  }
}

std::optional<Arrival> Network::Step() {
  if (lent_slot_) free_slots_.push_back(*lent_slot_);
  lent_slot_.reset();
  if (NextForeign() <= events_.next()) {
    StepForeign();
    return std::nullopt;
  }
  const Instant now = events_.next();
  const Flight flight = events_.Pop();
  if (flight.at_switch) {
    Forward(now, flight);
    return std::nullopt;
  }
  if (const Instant at = AfterHold(now, flight.to); at > now) {
    events_.Push(at, flight);
    return std::nullopt;
  }
  if (cut_[flight.to.index()]) {
    ++faults_.cut;
    free_slots_.push_back(flight.slot);
    return std::nullopt;
  }
  ++delivered_;
  lent_slot_ = flight.slot;
  return Arrival{flight.from, flight.to, flight.origin, slots_[flight.slot]};
}

bool Network::IsConserved() const {
  const std::uint64_t entered = sent_ + faults_.duplicated + faults_.foreign + faults_.garbage +
                                faults_.replayed + faults_.misdirected;
  const std::uint64_t dropped = faults_.lost + faults_.lost_in_burst + faults_.cut +
                                faults_.too_long + faults_.parted + faults_.queue_full_up +
                                faults_.queue_full_switch;
  return entered == delivered_ + in_flight() + dropped;
}

}  // namespace optireduce
