// The rate from one rank to one peer: a window in bytes and a pace, derived from acknowledged round
// trips. Pure: receives events and returns both numbers.
//
// Delay. The window aims at a queueing delay: a fixed part, plus the time in which `share` bytes of
// this rank leave at its rate. So senders that share a link hold equal parts of its queue, and get
// equal rates (the law of Vegas, and of Swift's scaling with the number of flows, SIGCOMM'20).
// Above the aim the window shrinks in proportion, below the aim it grows.
//
// Competing traffic. A loss-based TCP fills any queue, and would take nearly all of a link from a
// sender that yields to delay. The rate reveals it: while the rate is below half of this sender's
// part of the best rate, and a queue stands, the share grows; otherwise it falls back. So a
// competitor gets at most half, this rank takes at most half from it, and detection needs no loss.
// (A queue of less than 2 ms is below the aim; there a competitor gets less.) Processes that wait
// for a busy host look the same, and get the same response: a larger window.
//
// Loss. Random loss is no evidence about the rate. The window shrinks when more than an eighth of
// the data is lost in addition to the loss that persists at a lower rate.

#ifndef FFI_PROTOCOL_PATH_CONGESTION_CONTROLLER_H_
#define FFI_PROTOCOL_PATH_CONGESTION_CONTROLLER_H_

#include <cstddef>
#include <limits>

#include "ffi/base/time.h"

namespace optireduce {

// Windowed minimum: the least value noted in the last minutes.
class WindowedMin {
 public:
  // Old values expire, unless `keep`.
  void Record(Instant now, double value, bool keep);
  // Infinite if there is none.
  double value() const { return recent_ < before_ ? recent_ : before_; }

 private:
  double recent_ = std::numeric_limits<double>::infinity();  // the current half of the window
  double before_ = std::numeric_limits<double>::infinity();  // the previous half
  Instant since_{};
};

struct PathFacts {
  std::size_t window_bytes_max = 0;  // the peer's socket buffer, divided among its senders
  std::size_t datagram_bytes_max = 0;
  // Peers, this one included, that may send to the peer at the same time; as many senders of this
  // rank may share one link.
  std::size_t sharers = 1;
  // Shortest round trips, in nanoseconds, over all paths of this rank: a flow whose links are busy
  // from its start learns the path from the other flows. Outlives the controllers.
  WindowedMin* paths = nullptr;
  // The peer runs on this host: no link and no queue but the receiver's buffer, so the whole window
  // is available at once.
  bool same_host = false;
};

// Measurements of one round trip, from the sending of a datagram to the acknowledgement of this or
// a later one.
struct RoundTrip {
  Duration elapsed{};
  // Minimum of the samples: bursts and stalled hosts lengthen some of them, a standing queue all.
  Duration shortest{};
  std::size_t delivered_bytes = 0;
  std::size_t lost_bytes = 0;
  bool limited = false;  // the window or the pace, not the program, held data back
};

class CongestionController {
 public:
  explicit CongestionController(const PathFacts& options);

  // Sets the number of own senders on the link.
  void SetSharers(std::size_t sharers, std::size_t window_bytes_max);
  void HandleRoundTrip(Instant now, const RoundTrip& round);
  // The peer has been silent for so long that all datagrams under way were given up.
  void HandleSilence();

  // Bytes that may be under way.
  std::size_t window_bytes() const { return window_; }
  // `bytes`, limited to the range of a window.
  std::size_t Bounded(std::size_t bytes) const;
  // Time between the start of a batch of this many bytes and the next one; zero if the path is
  // faster than the precision of timers, where the window suffices.
  Duration PacingInterval(std::size_t bytes) const;
  bool paced() const;
  // The most bytes that may leave at once.
  std::size_t BurstBytes() const;
  // Own bytes that may wait in queues.
  std::size_t share_bytes() const { return share_; }
  // Bytes per nanosecond, over the last round trips that this controller limited; zero before the
  // first.
  double rate() const { return rate_time_ > 0 ? rate_bytes_ / rate_time_ : 0; }

 private:
  void Measure(Instant now, const RoundTrip& round);
  // The round trip of the path without any queue.
  Duration Path() const;
  bool LossIsHeavy(const RoundTrip& round);
  void AdaptShare(const RoundTrip& round, Duration queue);
  void SetWindow(std::size_t bytes);

  PathFacts options_;
  std::size_t window_ = 0;
  std::size_t share_min_ = 0;
  std::size_t share_ = 0;
  bool slow_start_ = true;
  // the window was just reduced; the next round trip was sent before that
  bool recovering_ = false;
  Duration round_trip_{};  // the shortest of the last one; zero before the first

  WindowedMin path_;     // shortest round trips, in nanoseconds
  WindowedMin fastest_;  // nanoseconds for one byte
  // Decaying sums over the last round trips that this controller limited.
  double rate_bytes_ = 0;
  double rate_time_ = 0;
  int rate_rounds_ = 0;

  // Loss since the last assessment, and its usual level.
  std::size_t judged_bytes_ = 0;
  std::size_t judged_lost_ = 0;
  double loss_usual_ = 0;
  double loss_shrunk_for_ = 0;  // the loss that last reduced the window; 0: none
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_CONGESTION_CONTROLLER_H_
