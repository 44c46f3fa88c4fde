#include "ffi/net/fault_port.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/net/clock.h"

namespace optireduce {
namespace {

constexpr std::uint32_t kMillion = 1'000'000;

// Datagrams that overtake a held-back one: 1 to this many.
// Chosen: more than the three later datagrams that protocols commonly take as a sign of loss.
constexpr std::uint64_t kOvertakersMax = 8;
// Longest time held back. Chosen: ends the wait if nothing else is sent, and exceeds any delay of a
// working network.
constexpr Duration kHoldBackMax = std::chrono::milliseconds(20);
// Chosen: at 64 kB each, a bound that the memory of a test machine has room for; beyond it
// datagrams are not held back, or not accepted.
constexpr std::size_t kHeldBackMax = 1024;
constexpr std::size_t kQueuedMax = 16 * 1024;

Duration FromSeconds(double seconds) {
  return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}

// A setting of a user, from 0 to `most`.
struct Setting {
  const char* name;
  double most;
  bool whole;
  const char* expected;
  void (*set)(Faults& faults, double value);
};

template <std::uint32_t Faults::* kPpm>
constexpr Setting Fraction(const char* name) {
  return {.name = name,
          .most = 1,
          .whole = false,
          .expected = "a fraction in [0, 1], such as 0.01 for one in a hundred",
          .set = [](Faults& faults, double value) {
            faults.*kPpm = static_cast<std::uint32_t>(std::lround(value * kMillion));
          }};
}

constexpr std::array<Setting, 9> kSettings = {{
    Fraction<&Faults::loss_ppm>("loss"),
    Fraction<&Faults::duplicate_ppm>("duplicate"),
    Fraction<&Faults::reorder_ppm>("reorder"),
    Fraction<&Faults::corrupt_ppm>("corrupt"),
    Fraction<&Faults::truncate_ppm>("truncate"),
    // Chosen: no test delays so much; a larger value is probably meant in milliseconds.
    {.name = "delay_s",
     .most = 60,
     .whole = false,
     .expected = "0 to 60 seconds",
     .set = [](Faults& faults, double value) { faults.delay = FromSeconds(value); }},
    // Chosen: longer than any test.
    {.name = "silent_after_s",
     .most = 3600,
     .whole = false,
     .expected = "0 to 3600 seconds",
     .set = [](Faults& faults, double value) { faults.silent_after = FromSeconds(value); }},
    // Source: the largest number of lanes, see options.py, less one.
    {.name = "lane",
     .most = 63,
     .whole = true,
     .expected = "a whole number in [0, 63]",
     .set = [](Faults& faults, double value) { faults.lane = static_cast<std::uint16_t>(value); }},
    // Source: IEEE 754 binary64 holds every whole number up to 2^53.
    {.name = "seed",
     .most = 9007199254740992.0,
     .whole = true,
     .expected = "a whole number in [0, 2^53]",
     .set = [](Faults& faults, double value) { faults.seed = static_cast<std::uint64_t>(value); }},
}};

}  // namespace

Result<Faults> Faults::FromMap(const std::map<std::string, double>& settings) {
  Faults faults;
  for (const auto& [name, value] : settings) {
    const auto* const setting =
        std::ranges::find(kSettings, std::string_view(name), &Setting::name);
    if (setting == kSettings.end()) {
      return InvalidArgument(
          "there is no fault \"" + name +
          "\"; expected loss, duplicate, reorder, corrupt, truncate (fractions in "
          "[0, 1]), delay_s, silent_after_s (seconds), lane or seed (whole numbers).");
    }
    // NaN fails the comparisons.
    const bool fits = value >= 0.0 && value <= setting->most;
    if (!fits || (setting->whole && std::floor(value) != value)) {
      return InvalidArgument("the fault " + name + " must be " + setting->expected + ", got " +
                             std::to_string(value) + ".");
    }
    setting->set(faults, value);
  }
  return faults;
}

FaultPort::FaultPort(std::unique_ptr<DatagramPort> port, const Faults& faults)
    : port_(std::move(port)),
      faults_(faults),
      silent_at_(faults.silent_after > Duration::zero() ? ClockNow() + faults.silent_after
                                                        : kNever),
      prng_(faults.seed) {}

bool FaultPort::Send(Rank to, Pieces pieces, std::size_t datagram_bytes) {
  OR_CHECK(datagram_bytes > 0);
  const Instant now = ClockNow();
  if (!Flush(now) || queue_.size() >= kQueuedMax) return false;
  Join(pieces, offered_);
  std::span<const std::byte> bytes = offered_;
  while (!bytes.empty()) {
    const std::size_t length = std::min(datagram_bytes, bytes.size());
    Offer(to, bytes.first(length), now);
    bytes = bytes.subspan(length);
  }
  // Datagrams that the port below refuses stay in the queue.
  Flush(now);
  return true;
}

void FaultPort::Offer(Rank to, std::span<const std::byte> datagram, Instant now) {
  // Draws every number, needed or not, so that one fault does not shift the faults of later
  // datagrams.
  const bool lose = prng_.Chance(faults_.loss_ppm);
  const bool duplicate = prng_.Chance(faults_.duplicate_ppm);
  const bool reorder = prng_.Chance(faults_.reorder_ppm);
  const bool corrupt = prng_.Chance(faults_.corrupt_ppm);
  const bool truncate = prng_.Chance(faults_.truncate_ppm);
  const std::uint64_t where = prng_.Next();
  const std::uint64_t length = prng_.Next();
  const std::uint64_t overtakers = 1 + prng_.Below(kOvertakersMax);

  ++counters_.offered;
  if (lose || Silent(now)) {
    ++counters_.lost;
    return;
  }
  Held harmed{.to = to, .bytes = std::vector<std::byte>(datagram.begin(), datagram.end())};
  if (truncate && harmed.bytes.size() > 1) {
    ++counters_.truncated;
    harmed.bytes.resize(1 + length % (harmed.bytes.size() - 1));
  }
  if (corrupt) {
    ++counters_.corrupted;
    const std::size_t bit = where % (8 * harmed.bytes.size());
    harmed.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  if (duplicate) {
    ++counters_.duplicated;
    Enqueue(harmed, now);
  }
  if (reorder && held_back_.size() < kHeldBackMax) {
    ++counters_.reordered;
    harmed.overtakers = overtakers;
    harmed.leaves_at = now + kHoldBackMax;
    held_back_.push_back(std::move(harmed));
  } else {
    Enqueue(std::move(harmed), now);
  }
}

void FaultPort::Enqueue(Held datagram, Instant now) {
  datagram.leaves_at = now + faults_.delay;
  queue_.push_back(std::move(datagram));
  for (Held& held : held_back_) {
    if (held.overtakers > 0) --held.overtakers;
  }
  ReleaseOvertaken(now);
}

void FaultPort::ReleaseOvertaken(Instant now) {
  const auto stays = [now](const Held& held) {
    return held.overtakers > 0 && held.leaves_at > now;
  };
  const auto released = std::stable_partition(held_back_.begin(), held_back_.end(), stays);
  for (auto held = released; held != held_back_.end(); ++held) {
    held->leaves_at = now + faults_.delay;
    queue_.push_back(std::move(*held));
  }
  held_back_.erase(released, held_back_.end());
}

bool FaultPort::Flush(Instant now) {
  ReleaseOvertaken(now);
  while (!queue_.empty() && queue_.front().leaves_at <= now) {
    const Held& next = queue_.front();
    const std::span<const std::byte> datagram = next.bytes;
    if (!port_->Send(next.to, {&datagram, 1}, datagram.size())) return false;
    queue_.pop_front();
  }
  return true;
}

std::size_t FaultPort::Receive(const std::function<void(std::span<const std::byte>)>& take) {
  const Instant now = ClockNow();
  Flush(now);
  if (Silent(now)) {
    port_->Receive([](std::span<const std::byte>) {});
    return 0;
  }
  return port_->Receive(take);
}

void FaultPort::Wait(Instant until) {
  const bool flushed = Flush(ClockNow());
  // A port that accepts no more ends its own wait as soon as it may accept the next datagram.
  if (flushed && !queue_.empty()) until = std::min(until, queue_.front().leaves_at);
  for (const Held& held : held_back_) until = std::min(until, held.leaves_at);
  port_->Wait(until);
  Flush(ClockNow());
}

}  // namespace optireduce
