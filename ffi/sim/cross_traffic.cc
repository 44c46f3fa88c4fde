#include "ffi/sim/cross_traffic.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

namespace optireduce {
namespace {

// Source: IEEE 802.3, a frame of 1500 bytes with header, check, preamble and gap.
constexpr std::size_t kSegmentBytes = 1538;
// Source: RFC 6928, ten segments.
constexpr double kFirstWindow = 10;
// Source: RFC 9438 5.1 and 4.6: C in segments per cubic second, beta.
constexpr double kCubicFactor = 0.4;
constexpr double kCubicBeta = 0.7;
// Source: RFC 9438 4.3: 3 * (1 - beta) / (1 + beta) segments in a round trip.
constexpr double kRenoGrowth = 3 * (1 - kCubicBeta) / (1 + kCubicBeta);
// Source: the least retransmission timeout of Linux.
constexpr Duration kTimeout = std::chrono::milliseconds(200);

}  // namespace

CrossTraffic::CrossTraffic(const CrossTrafficOptions& options)
    : options_(options), window_(kFirstWindow), threshold_(HUGE_VAL) {
  events_.Push(options.start, 0);
}

void CrossTraffic::Step(Link& link) {
  const Instant now = events_.next();
  const std::uint64_t number = events_.Pop();
  if (number > acknowledged_) {
    MakeAcknowledgement(now, number);
  } else if (next_number_ > acknowledged_ + 1 && now >= progress_at_ + kTimeout) {
    acknowledged_ = next_number_ - 1;
    threshold_ = std::max(window_ / 2, 2.0);
    window_ = 1;
  }
  if (active(now)) Send(now, link);
}

bool CrossTraffic::HasMore() const {
  return (next_number_ - 1) * kSegmentBytes < options_.bytes_max;
}

void CrossTraffic::Send(Instant now, Link& link) {
  while (HasMore() && static_cast<double>(next_number_ - 1 - acknowledged_) + 1 <= window_) {
    if (next_number_ == acknowledged_ + 1) progress_at_ = now;
    const std::optional<Instant> arrives = link.Offer(now, kSegmentBytes);
    if (arrives) {
      carried_bytes_ += kSegmentBytes;
      events_.Push(*arrives + options_.way_back, next_number_);
    }
    events_.Push(now + kTimeout, 0);
    ++next_number_;
  }
}

void CrossTraffic::MakeAcknowledgement(Instant now, std::uint64_t number) {
  const bool gap = number > acknowledged_ + 1;
  const bool known = acknowledged_ + 1 < recovery_;
  acknowledged_ = number;
  progress_at_ = now;
  if (!gap) {
    Grow(now);
  } else if (!known) {
    Shrink(now);
  }
}

void CrossTraffic::Grow(Instant now) {
  if (window_ < threshold_) {
    window_ += 1;
    return;
  }
  const double since_s = std::chrono::duration<double>(now - shrunk_at_).count();
  const double back_s = std::cbrt(window_max_ * (1 - kCubicBeta) / kCubicFactor);
  const double cubic = kCubicFactor * std::pow(since_s - back_s, 3) + window_max_;
  reno_window_ += kRenoGrowth / window_;
  window_ += std::clamp(cubic - window_, 0.0, window_ / 2) / window_;
  window_ = std::max(window_, reno_window_);
}

void CrossTraffic::Shrink(Instant now) {
  window_max_ = window_;
  window_ = std::max(window_ * kCubicBeta, 2.0);
  threshold_ = window_;
  reno_window_ = window_;
  shrunk_at_ = now;
  recovery_ = next_number_;
}

}  // namespace optireduce
