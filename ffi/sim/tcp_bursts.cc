#include "ffi/sim/tcp_bursts.h"

#include <algorithm>
#include <cmath>

namespace optireduce {
namespace {

// The Pareto distribution of the sizes.
// Chosen: as benchmarks/bursts.py: a finite mean and an infinite variance, as the sizes of flows in
// data centres; the largest is 30 times the mean, which lowers the mean by 7 %.
constexpr double kExponent = 1.5;
constexpr double kLargest = 30;

}  // namespace

TcpBursts::TcpBursts(const TcpBurstOptions& options, std::size_t hosts)
    : options_(options), prng_(options.seed) {
  for (std::size_t host = 0; host < hosts; ++host) ScheduleBurst(Instant{}, host);
}

double TcpBursts::Uniform() { return (static_cast<double>(prng_.Next() >> 12) + 0.5) * 0x1p-52; }

void TcpBursts::ScheduleBurst(Instant now, std::size_t host) {
  const double wait_s = -std::log(Uniform()) * options_.mean_bytes / options_.bytes_per_s;
  const Instant at = now + Duration(static_cast<Duration::rep>(wait_s * 1e9));
  if (at < options_.end) events_.Push(at, {.begins = true, .index = host});
}

void TcpBursts::Begin(Instant now, std::size_t host) {
  const double least = options_.mean_bytes * (kExponent - 1) / kExponent;
  const double size =
      std::min(least * std::pow(Uniform(), -1 / kExponent), kLargest * options_.mean_bytes);
  const CrossTraffic traffic({.start = now,
                              .end = options_.end,
                              .way_back = options_.way_back,
                              .bytes_max = static_cast<std::uint64_t>(size)});
  std::size_t place = bursts_.size();
  if (ended_.empty()) {
    bursts_.push_back({.host = host, .traffic = traffic});
  } else {
    place = ended_.back();
    ended_.pop_back();
    bursts_[place] = {.host = host, .traffic = traffic};
  }
  events_.Push(now, {.index = place});
}

void TcpBursts::Step(std::span<Link> down) {
  const Instant now = events_.next();
  const Event event = events_.Pop();
  if (event.begins) {
    Begin(now, event.index);
    ScheduleBurst(now, event.index);
    return;
  }
  Burst& burst = bursts_[event.index];
  burst.traffic.Step(down[burst.host]);
  if (burst.traffic.next() == kNever) {
    ended_.push_back(event.index);
  } else {
    events_.Push(burst.traffic.next(), event);
  }
}

}  // namespace optireduce
