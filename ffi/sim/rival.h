// A bulk TCP flow of somebody else, from a host outside of the session to one of its ranks: it
// meets the session's datagrams in the output queue of the switch.
//
// The model is a sender with CUBIC (RFC 9438): slow start, the cubic function, its Reno-friendly
// region, 0.7 of the window at a loss, once in a round trip. Simplified: every segment is
// acknowledged by itself, on a way back without a queue; the path keeps the order, so that a gap
// between two acknowledgements is a loss at once; what is lost is not sent again, for only the rate
// is of interest; without any acknowledgement for 200 ms the window starts from one segment.

#ifndef FFI_SIM_RIVAL_H_
#define FFI_SIM_RIVAL_H_

#include <cstddef>
#include <cstdint>

#include "ffi/base/time.h"
#include "ffi/sim/event_queue.h"
#include "ffi/sim/link.h"

namespace optireduce {

struct RivalOptions {
  Instant start{};
  Instant end{};        // sends nothing from then on
  Duration way_back{};  // of an acknowledgement
};

class Rival {
 public:
  explicit Rival(const RivalOptions& options);

  // When Step must be called; kNever when it is over.
  Instant next() const { return events_.next(); }
  void Step(Link& link);

  bool active(Instant now) const { return now >= options_.start && now < options_.end; }
  // Bytes on the wire that the link has taken.
  std::uint64_t carried_bytes() const { return carried_bytes_; }

 private:
  void Send(Instant now, Link& link);
  void MakeAcknowledgement(Instant now, std::uint64_t number);
  void Grow(Instant now);
  void Shrink(Instant now);

  RivalOptions options_;
  // Numbers of acknowledgements; one that was taken before stands for a timeout.
  EventQueue<std::uint64_t> events_;
  std::uint64_t next_number_ = 1;
  std::uint64_t acknowledged_ = 0;  // up to this nothing is under way
  Instant progress_at_{};
  std::uint64_t carried_bytes_ = 0;

  // In segments.
  double window_;
  double threshold_;
  double window_max_ = 0;   // at the last loss
  double reno_window_ = 0;  // what Reno would have
  Instant shrunk_at_{};
  std::uint64_t recovery_ = 0;  // losses of earlier numbers belong to the last one
};

}  // namespace optireduce

#endif  // FFI_SIM_RIVAL_H_
