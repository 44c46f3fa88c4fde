// The datagrams between this rank and one peer: packet numbers, loss detection, and round-trip
// measurements, from which a CongestionController derives the window and the pace; ReceivedNumbers
// is the other direction. Independent of collectives: the contents of a datagram are an
// opaque value that is returned with its delivery.
//
// A number is used once: lost data is retransmitted under a new number (as in QUIC, RFC 9000 13.3),
// so an acknowledgement is never ambiguous, every tag has its own nonce, and the number alone
// reveals a replay.
//
// Loss is detected by the receiver's report, not by silence: a datagram is lost if a later one was
// acknowledged, and enough datagrams were sent between them or enough time has passed (RFC 9002
// 6.1). Silence triggers a probe, whose acknowledgement is such a report.

#ifndef FFI_PROTOCOL_PATH_FLOW_H_
#define FFI_PROTOCOL_PATH_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/ring.h"
#include "ffi/base/time.h"
#include "ffi/protocol/path/black_hole_detector.h"
#include "ffi/protocol/path/congestion_controller.h"
#include "ffi/protocol/path/received_numbers.h"
#include "ffi/protocol/path/rtt_estimator.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

// The contents of a datagram, as far as its loss matters.
struct SentInfo {
  DatagramKind kind = DatagramKind::kProbe;
  std::uint8_t flags = 0;
  std::uint8_t segments = 1;  // segments of a contribution or a result, from `segment` on
  std::uint16_t bytes = 0;    // length of a padded probe
  CallId call{};
  SegmentIndex segment{};
};

struct Delivery {
  enum class Outcome : std::uint8_t {
    kDelivered,
    kLost,
    kRefused,  // it arrived, and the peer refuses it for now
  };
  SentInfo info;
  Outcome outcome = Outcome::kLost;
};

class Flow {
 public:
  explicit Flow(const PathFacts& options);

  // ---- Sending.

  // See PathFacts: the number of senders to the peer has changed.
  void SetSharers(std::size_t sharers, std::size_t window_bytes_max) {
    rate_.SetSharers(sharers, window_bytes_max);
  }
  // True if the window has room for `bytes` more.
  bool CanSend(std::size_t bytes) const;
  // True if pacing permits a batch now and the window has room for a full one, or will not grow
  // soon by an acknowledgement. If pacing does not, timeout() is the time to retry. A batch is not
  // interrupted: callers ask before it, not within it.
  bool MayStart(Instant now);
  std::size_t BurstBytes() const { return rate_.BurstBytes(); }
  // Factor by which the window and the pace exceed those of the path alone; 1: not at all.
  void SetWeight(double weight);
  // True while a datagram of this length would be lost in a black hole, except for occasional
  // trials at timeout().
  bool Blocks(Instant now, std::size_t bytes) { return lengths_.Blocks(now, bytes); }
  // The peer has yet to acknowledge something; if it is silent, HandleTimeout() makes probes due.
  bool awaits_acknowledgement() const { return in_flight_ > 0; }
  // True if one more datagram can be tracked; control datagrams need no window.
  bool CanTrack() const { return under_way_.size() < kUnderWayMax; }
  // The number for a datagram that leaves now and whose delivery is reported. `batch_bytes`: length
  // of the datagrams of its batch, which a host may refuse as a whole.
  std::uint64_t Track(Instant now, const SentInfo& info, std::size_t bytes,
                      std::size_t batch_bytes);
  // The number for a datagram whose delivery is not reported: an acknowledgement.
  std::uint64_t Untracked() { return next_number_++; }

  // Both return the new deliveries, valid until the next call of either.
  const std::vector<Delivery>& HandleAcknowledgement(Instant now,
                                                     const Acknowledgement& acknowledgement);
  const std::vector<Delivery>& HandleTimeout(Instant now);
  // Data waits for room in the window: requests a probe unless acknowledgements are on their way.
  // If they are overdue, as a probe is, HandleTimeout() makes room.
  void RequestRoom();
  // True once each time that a probe is due; the caller then sends one.
  bool PopProbe();
  bool probe_due() const { return probe_due_; }
  // Several probes are unanswered: more data would be lost as well for now.
  bool unanswered() const;

  const BlackHoleDetector& lengths() const { return lengths_; }

  // ---- Receiving.

  const ReceivedNumbers& received() const { return received_; }
  ReceivedNumbers& received() { return received_; }

  // Time of the next HandleTimeout, of a due acknowledgement, or at which pacing permits a batch
  // that was held back.
  Instant timeout() const;

  std::size_t window_bytes() const;
  std::size_t share_bytes() const { return rate_.share_bytes(); }
  // See CongestionController.
  double rate() const { return rate_.rate(); }
  // Nothing before the first acknowledgement.
  const std::optional<Duration>& round_trip_time() const { return rtt_.smoothed(); }

 private:
  struct InFlight {
    std::uint64_t number = 0;
    Instant sent_at{};
    SentInfo info{};
    std::uint32_t bytes = 0;
    std::uint32_t batch_bytes = 0;  // `bytes`, or more
    bool resolved = false;
  };

  std::size_t Room() const { return window_bytes() - std::min(in_flight_bytes_, window_bytes()); }
  // True if the peer will soon send an acknowledgement unasked.
  bool ExpectsAcknowledgement() const;
  void Resolve(InFlight& datagram, Delivery::Outcome outcome);
  void DetectLoss(Instant now);
  void StartRoundTrip(Instant now);
  void EndRoundTrip(Instant now);
  void PopResolved();
  Duration ProbeInterval(int unanswered) const;
  // Bytes that this rank would have sent until `now` if acknowledgements had come as before.
  std::size_t OverdueBytes(Instant now) const;
  // Time at which they are enough for a batch.
  Instant RoomAt() const;

  PathFacts options_;

  std::uint64_t next_number_ = 0;
  // Chosen: more than the window of the fastest path here (2 MB of 1472-byte datagrams to one
  // peer); a bound on memory, not on speed.
  static constexpr std::size_t kUnderWayMax = 2048;
  Ring<InFlight> under_way_;   // ordered by number
  std::size_t in_flight_ = 0;  // datagrams
  std::size_t unasked_ = 0;    // datagrams after the last probe
  std::size_t in_flight_bytes_ = 0;
  std::optional<std::uint64_t> largest_acknowledged_;
  Instant overtaken_lost_at_ = kNever;  // time at which an overtaken datagram is declared lost
  Instant last_sent_at_{};
  Instant last_progress_at_{};
  bool probe_due_ = false;
  int probes_unanswered_ = 0;
  std::vector<Delivery> deliveries_;

  BlackHoleDetector lengths_;

  RttEstimator rtt_;

  double weight_ = 1;
  CongestionController rate_;
  RoundTrip round_trip_;  // the current measurement
  Instant round_trip_start_{};
  std::uint64_t round_trip_first_ = 0;  // the number whose acknowledgement ends it
  Instant send_at_{};                   // time at which pacing permits the next batch
  bool paced_ = false;                  // a batch waits for that
  bool wants_room_ = false;             // data waits for the window
  std::size_t overdue_bytes_ = 0;       // bytes of the window, while acknowledgements are overdue

  ReceivedNumbers received_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_FLOW_H_
