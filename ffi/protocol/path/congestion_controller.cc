#include "ffi/protocol/path/congestion_controller.h"

#include <algorithm>

namespace optireduce {
namespace {

using std::chrono::microseconds;
using std::chrono::minutes;

// The least window, with which every path starts, and starts again after a silence.
// Source: RFC 9002 7.2, the minimum window. Chosen: not its initial window of ten, since all peers
// start at once: 8 ranks would first measure the queue of 100 kB that they fill, not the path.
constexpr std::size_t kWindowDatagramsMin = 2;
// A window may grow to so many, however small the receiver's buffer is, and keeps as many if it is
// not used. Chosen: enough for regular acknowledgements, which are sent for every eighth datagram
// of small windows, and for a bucket of 16 kB of 8 ranks.
constexpr std::size_t kSmallWindowDatagrams = 8;
// The former between processes of one host, whose datagrams may have 64 kB. Chosen: two under way
// while two are read.
constexpr std::size_t kSameHostDatagrams = 4;

// Queueing delay that is always tolerated.
// Source: the paper's T_low and T_high of 25 and 250 us; a process on an idle shared host sees more
// than T_low without any queue (124 us at the 99th percentile). Chosen: its T_high, 250 us; it is
// 31 kB at 1 Gbit/s, and less than sockets hold at 100 Gbit/s.
constexpr Duration kTarget = microseconds(250);
// Lower bound of the path's round trip. Chosen: 1 ms together with the target, so that a sender
// that first measures a data-centre path under load gets no more than one that measures it idle.
constexpr Duration kPathMin = microseconds(750);
// Chosen: the largest difference between the paths of one rank inside a data centre.
constexpr Duration kPathSpread = microseconds(250);
// Bytes of all our sharers that may wait in queues without a competitor. There are up to four
// queues on the way: at either host and in the switch, in both directions.
// Chosen: with 192 kB, 8 ranks took 4 % longer in the simulator; with 384 kB they lost three times
// as much in a switch with 256 kB a port.
constexpr std::size_t kQueueBytes = 256 * 1024;
// Bytes of one sharer. Chosen: one GSO batch.
constexpr std::size_t kShareBytesMax = 64 * 1024;

// Source: Swift 3.1, beta = 0.8 of the excess over the target, at most half in one round trip.
constexpr double kShrink = 0.8;
constexpr double kShrinkMax = 0.5;
// Least growth in one round trip. Chosen: Swift and TCP have one datagram, but a bucket lasts few
// round trips, and an excess is reduced soon.
constexpr std::size_t kGrowDatagrams = 2;
// Growth in proportion to the distance below the target. Chosen: less than the shrinking factor.
constexpr double kGrow = 0.5;

// Reduction of an unused window. Chosen: it is gone after as many round trips as its growth took.
constexpr std::size_t kUnusedPart = 4;

// Round trips over which a rate is measured. Chosen: acknowledgements that have waited in a queue
// arrive together, and make a single round trip look several times as fast.
constexpr int kRateRounds = 8;

// Lifetime of a shortest round trip and of a best rate.
// Source: BBR has 10 s. Chosen: paths inside a data centre are stable, while competing queues last.
constexpr Duration kBestLifetime = minutes(10);
// Chosen: half for us, half for competitors.
constexpr double kOurPart = 0.5;
// Growth and reduction of the share in one round trip. Chosen: from the least share to the queue of
// a switch in a dozen round trips; the reduction is slower, because a TCP yields for a long time at
// once.
constexpr std::size_t kSharePartUp = 4;
constexpr std::size_t kSharePartDown = 16;

// Chosen: random loss of a few per cent is not congestion, more than an eighth is (without any
// control a simulated switch lost a third, see docs/decisions/0010).
constexpr double kHeavyLoss = 0.125;
// Chosen: of fewer datagrams an eighth would often be lost by chance.
constexpr std::size_t kJudgedDatagramsMin = 64;
// Source: RFC 9438 (CUBIC) 4.6, beta.
constexpr double kShrinkForLoss = 0.7;
// Loss of at least this part of the loss before the window shrank is independent of the rate.
// Chosen: a queue that overflows by an eighth does not overflow at all with 0.7 of the data.
constexpr double kLossStays = 0.75;
// Chosen: calls support up to 30 % of loss; a path that loses half is never considered normal.
constexpr double kUsualLossMax = 0.35;

// Pace relative to one window per round trip. Source: BBR, 1.25 to probe, 2 to start.
constexpr double kPacingGain = 1.25;
constexpr double kPacingGainSlowStart = 2;
// A pace whose bursts take less than this is not enforced; the window limits alone. Chosen: 100 us
// is the precision of a wake-up on an idle host; a burst is one GSO batch of 64 kB: 5 Gbit/s.
constexpr Duration kTimerResolution = microseconds(100);
constexpr std::size_t kBurstBytes = 64 * 1024;

// Chosen: on slower paths a burst is at most half of the window; otherwise datagrams that are
// acknowledged together would leave together again, and meet the bursts of others in a queue. At 1
// Gbit/s and 1,472 bytes a third took an eighth more processor time; the whole window made 25 MB in
// the simulator take 1 % longer.
constexpr std::size_t kBurstPart = 2;

std::size_t Scale(std::size_t bytes, double by) {
  return static_cast<std::size_t>(static_cast<double>(bytes) * by);
}

}  // namespace

void WindowedMin::Record(Instant now, double value, bool keep) {
  if (now - since_ > kBestLifetime / 2 && !keep) {
    before_ = recent_;
    recent_ = value;
    since_ = now;
  }
  recent_ = std::min(recent_, value);
}

CongestionController::CongestionController(const PathFacts& options) : options_(options) {
  SetSharers(options.sharers, options.window_bytes_max);
}

void CongestionController::SetSharers(std::size_t sharers, std::size_t window_bytes_max) {
  const std::size_t datagrams = options_.same_host ? kSameHostDatagrams : kSmallWindowDatagrams;
  options_.sharers = sharers;
  options_.window_bytes_max = std::max(window_bytes_max, datagrams * options_.datagram_bytes_max);
  share_min_ = share_ = std::min(kShareBytesMax, kQueueBytes / sharers);
  SetWindow(options_.same_host ? options_.window_bytes_max : window_);
}

std::size_t CongestionController::Bounded(std::size_t bytes) const {
  return std::clamp(bytes, kWindowDatagramsMin * options_.datagram_bytes_max,
                    options_.window_bytes_max);
}

void CongestionController::SetWindow(std::size_t bytes) { window_ = Bounded(bytes); }

void CongestionController::HandleSilence() {
  slow_start_ = true;
  SetWindow(0);
}

Duration CongestionController::PacingInterval(std::size_t bytes) const {
  if (options_.same_host) return Duration::zero();
  const double gain = slow_start_ ? kPacingGainSlowStart : kPacingGain;
  const double per_byte = Nanoseconds(round_trip_) / (gain * static_cast<double>(window_));
  if (per_byte * kBurstBytes < Nanoseconds(kTimerResolution)) return Duration::zero();
  return Duration(static_cast<Duration::rep>(per_byte * static_cast<double>(bytes)));
}

bool CongestionController::paced() const { return PacingInterval(kBurstBytes) > Duration::zero(); }

std::size_t CongestionController::BurstBytes() const {
  return paced() ? window_ / kBurstPart : kBurstBytes;
}

void CongestionController::HandleRoundTrip(Instant now, const RoundTrip& round) {
  if (options_.same_host) return SetWindow(options_.window_bytes_max);
  Measure(now, round);
  if (LossIsHeavy(round)) {
    slow_start_ = false;
    recovering_ = true;
    return SetWindow(Scale(window_, kShrinkForLoss));
  }
  if (recovering_) {
    recovering_ = false;
    return;
  }
  const Duration queue = round.shortest - Path();
  AdaptShare(round, queue);
  const double above = Nanoseconds(queue - kTarget) / Nanoseconds(round.shortest) -
                       static_cast<double>(share_) / static_cast<double>(window_);
  if (above > 0) {
    slow_start_ = false;
    recovering_ = true;
    SetWindow(Scale(window_, 1 - std::min(kShrink * above, kShrinkMax)));
  } else if (loss_shrunk_for_ > 0) {
    // The window stays until the effect of its last reduction on the loss is known.
  } else if (round.limited) {
    const std::size_t least = kGrowDatagrams * options_.datagram_bytes_max;
    SetWindow(window_ + (slow_start_
                             ? window_
                             : std::max(least, Scale(window_, std::min(kGrow * -above, 1.0)))));
  } else if (round.delivered_bytes < window_ / 2) {
    // An unused window is no evidence about the path, and must not leave as one burst later.
    const std::size_t kept = kSmallWindowDatagrams * options_.datagram_bytes_max;
    SetWindow(std::max(window_ - window_ / kUnusedPart, std::min(window_, kept)));
  }
}

void CongestionController::Measure(Instant now, const RoundTrip& round) {
  round_trip_ = round.shortest;
  // While competitors fill the queue, recent minima are not those of the path.
  const bool keep = share_ > share_min_;
  const double shortest = Nanoseconds(round.shortest);
  path_.Record(now, shortest, keep);
  if (options_.paths) options_.paths->Record(now, shortest, keep);
  if (!round.limited) return;
  rate_bytes_ += static_cast<double>(round.delivered_bytes) - rate_bytes_ / kRateRounds;
  rate_time_ += Nanoseconds(round.elapsed) - rate_time_ / kRateRounds;
  if (rate_rounds_ < kRateRounds) {
    ++rate_rounds_;
  } else if (rate_bytes_ > 0) {
    fastest_.Record(now, rate_time_ / rate_bytes_, keep);
  }
}

Duration CongestionController::Path() const {
  double shortest = path_.value();
  if (options_.paths) {
    shortest = std::min(shortest, options_.paths->value() + Nanoseconds(kPathSpread));
  }
  return std::max(Duration(static_cast<Duration::rep>(shortest)), kPathMin);
}

bool CongestionController::LossIsHeavy(const RoundTrip& round) {
  judged_bytes_ += round.delivered_bytes + round.lost_bytes;
  judged_lost_ += round.lost_bytes;
  if (judged_bytes_ < kJudgedDatagramsMin * options_.datagram_bytes_max) return false;
  const double loss = static_cast<double>(judged_lost_) / static_cast<double>(judged_bytes_);
  judged_bytes_ = 0;
  judged_lost_ = 0;
  if (loss < loss_usual_) {
    loss_usual_ += (loss - loss_usual_) / 4;
  } else if (loss_shrunk_for_ > 0 && loss >= kLossStays * loss_shrunk_for_) {
    loss_usual_ = std::min(loss_usual_ + (loss - loss_usual_) / 2, kUsualLossMax);
  }
  const bool heavy = loss > loss_usual_ + kHeavyLoss;
  loss_shrunk_for_ = heavy ? loss : 0;
  return heavy;
}

void CongestionController::AdaptShare(const RoundTrip& round, Duration queue) {
  if (!round.limited) return;
  const double ours = kOurPart / static_cast<double>(options_.sharers) / fastest_.value();
  if (queue > kTarget && rate_bytes_ < ours * rate_time_) {
    share_ = std::min(share_ + share_ / kSharePartUp, options_.window_bytes_max);
  } else {
    share_ -= share_ / kSharePartDown;
  }
  share_ = std::max(share_, share_min_);
}

}  // namespace optireduce
