#include "ffi/protocol/path/congestion_controller.h"

#include <algorithm>

namespace optireduce {
namespace {

using std::chrono::microseconds;
using std::chrono::minutes;

// Chosen: two GSO batches of Ethernet datagrams.
constexpr std::size_t kFirstWindowDatagrams = 64;
// Chosen: all peers together begin with 1/64 of what a receiver's socket holds (the windows may
// fill half of it), so that the first round trips are measured without a queue.
constexpr std::size_t kFirstWindowShare = 32;
// Chosen: keeps acknowledgements coming, which leave for every eighth datagram where windows are
// small.
constexpr std::size_t kWindowDatagramsMin = 8;

// Queueing delay that is never too much.
// Source: the paper's T_low and T_high of 25 and 250 us are below what a process on a shared host
// sees without any queue (124 us at the 99th percentile when idle). Chosen: 250 us, its T_high; it
// is 31 kB at 1 Gbit/s, and less than sockets hold at 100.
constexpr Duration kTarget = microseconds(250);
// A path that is shorter counts as this long. Chosen: with what the target adds, 1 ms; so who has
// measured a path of a data centre under load gets no more than who has measured it idle.
constexpr Duration kPathMin = microseconds(750);
// Chosen: by which paths of one rank inside a data centre differ at most.
constexpr Duration kPathSpread = microseconds(250);
// Bytes of all our sharers that may wait in queues, where nobody competes. There are up to four on
// the way: at either host and in the switch, in both directions.
// Chosen: with 192 kB, 8 ranks took 4 % longer in the simulator; with 384 kB they lost three times
// as much in a switch with 256 kB a port.
constexpr std::size_t kQueueBytes = 256 * 1024;
// Of one of them. Chosen: one GSO batch.
constexpr std::size_t kShareBytesMax = 64 * 1024;

// Source: Swift 3.1, beta = 0.8 of what is above the target, at most half in one round trip.
constexpr double kShrink = 0.8;
constexpr double kShrinkMax = 0.5;
// Growth in one round trip at least. Chosen: Swift and TCP have one datagram, but a bucket has few
// round trips, and what is too much is taken back soon.
constexpr std::size_t kGrowDatagrams = 2;
// Growth in proportion to what is below the target. Chosen: less than what shrinking takes.
constexpr double kGrow = 0.5;

// Of a window that is not used. Chosen: it is gone after as many round trips as it took to grow.
constexpr std::size_t kUnusedPart = 4;

// A rate is measured over so many round trips. Chosen: acknowledgements that have waited in a queue
// come together, and make a single one look several times as fast.
constexpr int kRateRounds = 8;

// How long a best round trip and a best rate count.
// Source: BBR has 10 s. Chosen: paths inside a data centre do not change, queues of others last.
constexpr Duration kBestLifetime = minutes(10);
// Chosen: half for us, half for whoever competes.
constexpr double kOurPart = 0.5;
// The growth of the share in one round trip, and its fall. Chosen: from the least share to the
// queue of a switch in a dozen round trips; the fall is slower, for a TCP gives way for long at
// once.
constexpr std::size_t kSharePartUp = 4;
constexpr std::size_t kSharePartDown = 16;

// Chosen: random loss of a few per cent is not congestion (a third was lost in a simulated switch
// without any control, see docs/decisions/0010); more than an eighth is.
constexpr double kHeavyLoss = 0.125;
// Chosen: with fewer datagrams an eighth would often be lost by chance.
constexpr std::size_t kJudgedDatagramsMin = 64;
// Source: RFC 9438 (CUBIC) 4.6, beta.
constexpr double kShrinkForLoss = 0.7;
// Loss that is at least this part of what it was before the window shrank has not answered to it.
// Chosen: a queue that overflows by an eighth does not overflow at all with 0.7 of the data.
constexpr double kLossStays = 0.75;
// Chosen: 30 % is the most that calls are made for; a path that loses half is never taken for well.
constexpr double kUsualLossMax = 0.35;

// Pace over what the window allows in a round trip. Source: BBR, 1.25 to probe, 2 to start.
constexpr double kPacingGain = 1.25;
constexpr double kPacingGainSlowStart = 2;
// A pace at which a burst takes less than this is left to the window. Chosen: 100 us is how exactly
// a process wakes up on an idle host; a burst is one GSO batch of 64 kB: 5 Gbit/s.
constexpr Duration kTimerResolution = microseconds(100);
constexpr std::size_t kBurstBytes = 64 * 1024;

// Chosen: on slower paths half of the window leaves at once; what is acknowledged together would
// else leave together again, and meet the bursts of others in a queue. At 1 Gbit/s and 1,472 bytes
// a third took an eighth more processor time; all of it made 25 MB in the simulator 1 % longer.
constexpr std::size_t kBurstPart = 2;

double Nanoseconds(Duration duration) { return static_cast<double>(duration.count()); }

std::size_t Scale(std::size_t bytes, double by) {
  return static_cast<std::size_t>(static_cast<double>(bytes) * by);
}

}  // namespace

void WindowedMin::Note(Instant now, double value, bool keep) {
  if (now - since_ > kBestLifetime / 2 && !keep) {
    before_ = recent_;
    recent_ = value;
    since_ = now;
  }
  recent_ = std::min(recent_, value);
}

CongestionController::CongestionController(const RateOptions& options) : options_(options) {
  SetSharers(options.sharers, options.window_bytes_max);
}

void CongestionController::SetSharers(std::size_t sharers, std::size_t window_bytes_max) {
  options_.sharers = sharers;
  options_.window_bytes_max = window_bytes_max;
  share_min_ = share_ = std::min(kShareBytesMax, kQueueBytes / sharers);
  const bool measured = round_trip_ > Duration::zero();
  if (options_.same_host) {
    SetWindow(window_bytes_max);
  } else if (measured) {
    SetWindow(window_);
  } else {
    SetWindow(std::min(kFirstWindowDatagrams * options_.datagram_bytes_max,
                       window_bytes_max / kFirstWindowShare));
  }
}

std::size_t CongestionController::Bounded(std::size_t bytes) const {
  return std::max(std::min(bytes, options_.window_bytes_max),
                  kWindowDatagramsMin * options_.datagram_bytes_max);
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
    // Does the loss answer? Not before that is known.
  } else if (round.limited) {
    const std::size_t least = kGrowDatagrams * options_.datagram_bytes_max;
    SetWindow(window_ + (slow_start_
                             ? window_
                             : std::max(least, Scale(window_, std::min(kGrow * -above, 1.0)))));
  } else if (round.delivered_bytes < window_ / 2) {
    // What is not used says nothing of the path, and must not all leave at once some day.
    SetWindow(window_ - window_ / kUnusedPart);
  }
}

void CongestionController::Measure(Instant now, const RoundTrip& round) {
  round_trip_ = round.shortest;
  // While somebody competes, the best of now is not the best of the path.
  const bool keep = share_ > share_min_;
  const double shortest = Nanoseconds(round.shortest);
  path_.Note(now, shortest, keep);
  if (options_.paths) options_.paths->Note(now, shortest, keep);
  if (!round.limited) return;
  rate_bytes_ += static_cast<double>(round.delivered_bytes) - rate_bytes_ / kRateRounds;
  rate_time_ += Nanoseconds(round.elapsed) - rate_time_ / kRateRounds;
  if (rate_rounds_ < kRateRounds) {
    ++rate_rounds_;
  } else if (rate_bytes_ > 0) {
    fastest_.Note(now, rate_time_ / rate_bytes_, keep);
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
