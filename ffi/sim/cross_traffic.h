// A competing bulk TCP flow, from a host outside of the session to one of its ranks: it shares the
// output queue of the switch with the session's datagrams.
//
// The model is a sender with CUBIC (RFC 9438): slow start, the cubic function, its Reno-friendly
// region, and a reduction to 0.7 of the window at a loss, once in a round trip. Simplifications:
// every segment is acknowledged separately, on a return path without a queue; the path keeps the
// order, so that a gap between two acknowledgements is a loss; lost segments are not retransmitted,
// because only the rate matters; after 200 ms without an acknowledgement the window restarts from
// one segment.

#ifndef FFI_SIM_CROSS_TRAFFIC_H_
#define FFI_SIM_CROSS_TRAFFIC_H_

#include <cstddef>
#include <cstdint>

#include "ffi/base/time.h"
#include "ffi/sim/event_queue.h"
#include "ffi/sim/link.h"

namespace optireduce {

struct CrossTrafficOptions {
  Instant start{};
  Instant end{};        // no data is sent from then on
  Duration way_back{};  // latency of an acknowledgement
  std::uint64_t bytes_max = UINT64_MAX;
};

class CrossTraffic {
 public:
  explicit CrossTraffic(const CrossTrafficOptions& options);

  // Time of the next Step; kNever after the end.
  Instant next() const { return events_.next(); }
  void Step(Link& link);

  bool active(Instant now) const { return now >= options_.start && now < options_.end; }
  // Bytes on the wire that the link has accepted.
  std::uint64_t carried_bytes() const { return carried_bytes_; }

 private:
  // Every segment counts, also one that the link drops.
  bool HasMore() const;
  void Send(Instant now, Link& link);
  void MakeAcknowledgement(Instant now, std::uint64_t number);
  void Grow(Instant now);
  void Shrink(Instant now);

  CrossTrafficOptions options_;
  // Numbers of acknowledgements; a number that was already handled represents a timeout.
  EventQueue<std::uint64_t> events_;
  std::uint64_t next_number_ = 1;
  std::uint64_t acknowledged_ = 0;  // no segment up to this number is under way
  Instant progress_at_{};
  std::uint64_t carried_bytes_ = 0;

  // The unit is one segment.
  double window_;
  double threshold_;
  double window_max_ = 0;   // the window at the last loss
  double reno_window_ = 0;  // the window of Reno
  Instant shrunk_at_{};
  std::uint64_t recovery_ = 0;  // losses of earlier numbers belong to the last reduction
};

}  // namespace optireduce

#endif  // FFI_SIM_CROSS_TRAFFIC_H_
