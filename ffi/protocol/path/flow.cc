#include "ffi/protocol/path/flow.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ffi/base/check.h"

namespace optireduce {
namespace {

using std::chrono::milliseconds;

// Chosen: RFC 9002 has 3; offloads and several queues of one host reorder whole batches, and a
// spurious retransmission costs more here than a slightly later one.
constexpr std::uint64_t kReorderDatagrams = 16;

// An overtaken datagram is lost after a round trip plus this part of it.
// Source: RFC 9002 6.1.2, 1/8 of the round trip. Chosen: at least its granularity, because queues
// of one host delay datagrams sent together by up to that much relative to each other.
constexpr int kReorderTimePart = 8;
// Source: RFC 9002 6.1.2, kGranularity.
constexpr Duration kGranularity = milliseconds(1);

// Source: RFC 9002 6.2.2 starts from 333 ms across the Internet. Chosen: 10 ms within a data
// centre; a lost announcement delays a first call by as much.
constexpr Duration kFirstProbeInterval = milliseconds(10);
// Chosen: below this the scheduling delays of a busy host look like loss.
constexpr Duration kProbeIntervalMin = milliseconds(5);
constexpr Duration kProbeIntervalMax = std::chrono::seconds(1);  // Chosen: a dead peer's heartbeat.
// Chosen: after this many unanswered probes, all datagrams under way are declared lost.
constexpr int kProbesUnansweredMax = 5;

// Without pacing, a batch does not begin while less than this part of the window is free: otherwise
// each acknowledgement would release one datagram, in a system call of its own, and the pattern
// would persist. (On a slower path a datagram that waits is time lost on the link.)
// Source: RFC 1122 4.2.3.4 uses half of the window against this "silly window syndrome". Chosen: a
// quarter; the other peers keep the path busy meanwhile.
constexpr std::size_t kSmallRoom = 4;

// Chosen: the latest wake-up of a healthy process; a batch delayed by up to this much may leave at
// once, further delay is not caught up.
constexpr Duration kPacingCredit = milliseconds(1);

// While acknowledgements are overdue, data leaves at its former rate for so long: the peer's host
// may not run for a while, or this one has not received them, and neither is a queue. Chosen:
// stalls of a host last a few scheduling periods of its hypervisor. At 1 Gbit/s a third of a link
// carries 1.3 MB in this time, as much as a receiver with a buffer of 8 MiB has room for.
constexpr Duration kOverdueMax = milliseconds(32);

std::size_t Part(std::size_t bytes, double of) {
  return static_cast<std::size_t>(static_cast<double>(bytes) * of);
}

}  // namespace

Flow::Flow(const PathFacts& options)
    : options_(options),
      rate_(options),
      received_(rate_.Bounded(SIZE_MAX) / options.datagram_bytes_max, options.datagram_bytes_max) {}

void Flow::SetWeight(double weight) {
  // Between processes of one host only the receiver's buffer limits.
  if (!options_.same_host) weight_ = weight;
}

std::size_t Flow::window_bytes() const {
  return rate_.Bounded(Part(rate_.window_bytes(), weight_) + overdue_bytes_);
}

bool Flow::CanSend(std::size_t bytes) const {
  return CanTrack() && in_flight_bytes_ + bytes <= window_bytes();
}

bool Flow::MayStart(Instant now) {
  paced_ = now < send_at_;
  const bool small = !rate_.paced() && ExpectsAcknowledgement() &&
                     Room() < std::min(rate_.BurstBytes(), window_bytes() / kSmallRoom);
  if (paced_ || small) round_trip_.limited = true;
  return !paced_ && !small;
}

std::uint64_t Flow::Track(Instant now, const SentInfo& info, std::size_t bytes,
                          std::size_t batch_bytes) {
  OR_CHECK(CanTrack());
  // Silence is measured from the first datagram after an idle period.
  if (under_way_.empty()) {
    last_progress_at_ = now;
    StartRoundTrip(now);
  }
  send_at_ =
      std::max(send_at_, now - kPacingCredit) + rate_.PacingInterval(Part(bytes, 1 / weight_));
  under_way_.push_back({.number = next_number_,
                        .sent_at = now,
                        .info = info,
                        .bytes = static_cast<std::uint32_t>(bytes),
                        .batch_bytes = static_cast<std::uint32_t>(batch_bytes)});
  ++in_flight_;
  unasked_ = info.kind == DatagramKind::kProbe ? 0 : unasked_ + 1;
  in_flight_bytes_ += bytes;
  last_sent_at_ = now;
  lengths_.Sent(now, bytes, ProbeInterval(lengths_.trials() + 1));
  if (Room() < options_.datagram_bytes_max) round_trip_.limited = true;
  return next_number_++;
}

bool Flow::ExpectsAcknowledgement() const {
  // The peer acknowledges at the same interval as this rank.
  return std::min(unasked_, in_flight_) >= received_.acknowledge_every();
}

const std::vector<Delivery>& Flow::HandleAcknowledgement(Instant now,
                                                         const Acknowledgement& acknowledgement) {
  deliveries_.clear();
  if (acknowledgement.largest >= next_number_)
    return deliveries_;  // a number never sent: a confused peer
  probes_unanswered_ = 0;
  for (std::size_t i = 0; i < under_way_.size() && under_way_[i].number <= acknowledgement.largest;
       ++i) {
    InFlight& datagram = under_way_[i];
    if (datagram.resolved || !acknowledgement.Contains(datagram.number)) continue;
    if (datagram.number == acknowledgement.largest) {
      const Duration sample = std::max(now - datagram.sent_at - acknowledgement.delay, Duration(1));
      const bool first = round_trip_.shortest == Duration::zero();
      round_trip_.shortest = first ? sample : std::min(round_trip_.shortest, sample);
      rtt_.Measure(sample);
    }
    largest_acknowledged_ = std::max(largest_acknowledged_.value_or(0), datagram.number);
    round_trip_.delivered_bytes += datagram.bytes;
    lengths_.Delivered(datagram.bytes);
    Resolve(datagram, acknowledgement.Refuses(datagram.number) ? Delivery::Outcome::kRefused
                                                               : Delivery::Outcome::kDelivered);
    last_progress_at_ = now;
    overdue_bytes_ = 0;
    wants_room_ = false;
  }
  DetectLoss(now);
  EndRoundTrip(now);
  PopResolved();
  return deliveries_;
}

void Flow::Resolve(InFlight& datagram, Delivery::Outcome outcome) {
  datagram.resolved = true;
  --in_flight_;
  in_flight_bytes_ -= datagram.bytes;
  deliveries_.push_back({.info = datagram.info, .outcome = outcome});
}

void Flow::DetectLoss(Instant now) {
  overtaken_lost_at_ = kNever;
  if (!largest_acknowledged_) return;
  const Duration usual = rtt_.smoothed().value_or(kFirstProbeInterval);
  const Duration patience = usual + std::max(kGranularity, usual / kReorderTimePart);
  for (std::size_t i = 0; i < under_way_.size() && under_way_[i].number < *largest_acknowledged_;
       ++i) {
    InFlight& datagram = under_way_[i];
    if (datagram.resolved) continue;
    const bool overtaken = datagram.number + kReorderDatagrams <= *largest_acknowledged_;
    if (!overtaken && now < datagram.sent_at + patience) {
      overtaken_lost_at_ = datagram.sent_at + patience;
      return;
    }
    round_trip_.lost_bytes += datagram.bytes;
    lengths_.Lost(now, datagram.batch_bytes);
    Resolve(datagram, Delivery::Outcome::kLost);
    last_progress_at_ = now;
  }
}

void Flow::StartRoundTrip(Instant now) {
  round_trip_ = {};
  round_trip_start_ = now;
  round_trip_first_ = next_number_;
}

void Flow::EndRoundTrip(Instant now) {
  const bool over = largest_acknowledged_ && *largest_acknowledged_ >= round_trip_first_;
  if (!over || round_trip_.shortest == Duration::zero()) return;
  round_trip_.elapsed = std::max(now - round_trip_start_, Duration(1));
  rate_.HandleRoundTrip(now, round_trip_);
  StartRoundTrip(now);
}

void Flow::PopResolved() {
  while (!under_way_.empty() && under_way_.front().resolved) under_way_.pop_front();
}

Duration Flow::ProbeInterval(int unanswered) const {
  // Source: RFC 9002 6.2.1, the probe timeout, with its doubling. Without the granularity, on paths
  // with constant round trips, every probe would be due when the previous one is acknowledged.
  const Duration base =
      rtt_.smoothed()
          ? std::max(rtt_.Longest(kGranularity) + ReceivedNumbers::kDelayMax, kProbeIntervalMin)
          : kFirstProbeInterval;
  return std::min(base * (1 << std::min(unanswered, 10)), kProbeIntervalMax);
}

const std::vector<Delivery>& Flow::HandleTimeout(Instant now) {
  deliveries_.clear();
  paced_ = paced_ && now < send_at_;
  lengths_.HandleTimeout(now);
  if (now >= overtaken_lost_at_) {
    DetectLoss(now);
    PopResolved();
  }
  if (now >= RoomAt()) {
    overdue_bytes_ = OverdueBytes(now);
    wants_room_ = false;
  }
  if (under_way_.empty() || probe_due_) return deliveries_;
  const Instant silent_since = std::max(last_sent_at_, last_progress_at_);
  if (now < silent_since + ProbeInterval(probes_unanswered_)) return deliveries_;
  ++probes_unanswered_;
  if (probes_unanswered_ >= kProbesUnansweredMax) {
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
      if (!under_way_[i].resolved) Resolve(under_way_[i], Delivery::Outcome::kLost);
    }
    PopResolved();
    overtaken_lost_at_ = kNever;
    overdue_bytes_ = 0;
    wants_room_ = false;
    // No length arrives, so loss is no evidence about lengths.
    lengths_ = {};
    rate_.HandleSilence();
  }
  // Sent even then: a peer that accepts no data for now still answers probes.
  probe_due_ = true;
  return deliveries_;
}

void Flow::RequestRoom() {
  probe_due_ = probe_due_ || (unasked_ > 0 && !ExpectsAcknowledgement());
  wants_room_ = true;
}

std::size_t Flow::OverdueBytes(Instant now) const {
  const Duration since = now - last_progress_at_;
  return static_cast<std::size_t>(rate_.rate() * Nanoseconds(std::min(since, kOverdueMax)));
}

Instant Flow::RoomAt() const {
  const double rate = rate_.rate();
  const bool grows = CanTrack() && window_bytes() < rate_.Bounded(SIZE_MAX);
  if (!wants_room_ || !grows || rate == 0) return kNever;
  const double bytes = static_cast<double>(overdue_bytes_ + rate_.BurstBytes());
  const double ns = bytes / rate;
  if (ns > Nanoseconds(kOverdueMax)) return kNever;
  const Duration after(static_cast<Duration::rep>(ns));
  return last_progress_at_ + std::max(ProbeInterval(0), after);
}

bool Flow::PopProbe() {
  const bool due = probe_due_ && CanTrack();
  if (due) probe_due_ = false;
  return due;
}

bool Flow::unanswered() const { return probes_unanswered_ >= kProbesUnansweredMax; }

Instant Flow::timeout() const {
  Instant at = std::min({received_.timeout(), overtaken_lost_at_, lengths_.timeout()});
  if (paced_) at = std::min(at, send_at_);
  at = std::min(at, RoomAt());
  if (!under_way_.empty() && !probe_due_) {
    at = std::min(at,
                  std::max(last_sent_at_, last_progress_at_) + ProbeInterval(probes_unanswered_));
  }
  return at;
}

}  // namespace optireduce
