// How fast one rank may send to one peer: a window in bytes and a pace, from the round trips that
// were acknowledged. Pure: it is told what happened and asked for both numbers.
//
// Delay. The window aims at a queueing delay: a fixed part, and the time that `share` bytes of our
// own take to leave at our rate. So senders that share a link hold equal parts of its queue, and
// get equal rates (the law of Vegas, and of Swift's scaling with the number of flows, SIGCOMM'20).
// Above the aim it shrinks in proportion, below it grows.
//
// Others' queues. A loss-based TCP fills whatever queue there is, and would take nearly all of a
// link from who yields to delay. The rate tells: while it is below half of the part of the best
// rate that is ours, and a queue stands, the share grows; above, it falls back. So a competitor
// gets at most half, we take at most half from it, and nobody's losses are needed to know. (A queue
// of less than 2 ms is below the aim; there a competitor gets less.) Processes
// that wait for a busy host look the same, and get the same answer: a larger window.
//
// Loss. Random loss says nothing of the rate. It shrinks the window when more than an eighth of the
// data is lost beyond what stays when less is sent.

#ifndef FFI_PROTOCOL_PATH_CONGESTION_CONTROLLER_H_
#define FFI_PROTOCOL_PATH_CONGESTION_CONTROLLER_H_

#include <cstddef>
#include <limits>

#include "ffi/base/time.h"

namespace optireduce {

// The least of what was noted in the last minutes.
class WindowedMin {
 public:
  // Old values are forgotten, unless `keep`.
  void Note(Instant now, double value, bool keep);
  // Infinite when there is none.
  double value() const { return recent_ < before_ ? recent_ : before_; }

 private:
  double recent_ = std::numeric_limits<double>::infinity();  // of this half of them
  double before_ = std::numeric_limits<double>::infinity();  // of the half before
  Instant since_{};
};

struct RateOptions {
  std::size_t window_bytes_max = 0;
  std::size_t datagram_bytes_max = 0;
  std::size_t sharers = 1;  // of our own senders, this one included, that one link may have
  // Shortest round trips, in nanoseconds, of all paths of this rank: who meets a peer first when
  // its links are busy knows the path from the others. Outlives the controllers.
  WindowedMin* paths = nullptr;
  // No link lies between, and no queue but the receiver's buffer: the whole window at once.
  bool same_host = false;
};

// What one round trip has shown: from the sending of a datagram to the acknowledgement of it or of
// a later one.
struct RoundTrip {
  Duration elapsed{};
  // Of the samples: bursts and stalled hosts lengthen some of them, a standing queue all.
  Duration shortest{};
  std::size_t delivered_bytes = 0;
  std::size_t lost_bytes = 0;
  bool limited = false;  // the window or the pace, not the program, held data back
};

class CongestionController {
 public:
  explicit CongestionController(const RateOptions& options);

  // There are more of our own senders than before, or fewer.
  void SetSharers(std::size_t sharers, std::size_t window_bytes_max);
  void HandleRoundTrip(Instant now, const RoundTrip& round);
  // The peer has not answered for so long that all of what was under way was given up.
  void HandleSilence();

  // Bytes that may be under way.
  std::size_t window_bytes() const { return window_; }
  // The nearest that a window may have.
  std::size_t Bounded(std::size_t bytes) const;
  // How long after so many bytes the next may leave; zero where the path is faster than timers are
  // exact: there the window is enough.
  Duration PacingInterval(std::size_t bytes) const;
  bool paced() const;
  // The most that may leave at once.
  std::size_t BurstBytes() const;
  // Bytes of ours that may wait in queues.
  std::size_t share_bytes() const { return share_; }

 private:
  void Measure(Instant now, const RoundTrip& round);
  // The round trip of the path without any queue.
  Duration Path() const;
  bool LossIsHeavy(const RoundTrip& round);
  void AdaptShare(const RoundTrip& round, Duration queue);
  void SetWindow(std::size_t bytes);

  RateOptions options_;
  std::size_t window_ = 0;
  std::size_t share_min_ = 0;
  std::size_t share_ = 0;
  bool slow_start_ = true;
  bool recovering_ = false;  // the window was shrunk; what comes next was sent before
  Duration round_trip_{};    // the shortest of the last one; zero before the first

  WindowedMin path_;     // shortest round trips, in nanoseconds
  WindowedMin fastest_;  // nanoseconds for one byte
  // Sums over the last round trips in which this was the limit, older ones counting for less.
  double rate_bytes_ = 0;
  double rate_time_ = 0;
  int rate_rounds_ = 0;

  // Loss since it was judged last, and how much of it is usual.
  std::size_t judged_bytes_ = 0;
  std::size_t judged_lost_ = 0;
  double loss_usual_ = 0;
  double loss_shrunk_for_ = 0;  // for which the window was shrunk last time; 0: it was not
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_CONGESTION_CONTROLLER_H_
