// The datagrams between this rank and one peer, in both directions: numbering, acknowledgement,
// detection of loss, and the measuring of round trips, from which a CongestionController says how
// much may be under way and when it may leave. It knows nothing of collectives; what a datagram
// carried is a value that comes back with its delivery.
//
// A number is used once: what is lost is sent again under a new one (as in QUIC, RFC 9000 13.3), so
// an acknowledgement is never ambiguous, every tag has its own nonce, and a replay is seen by its
// number alone.
//
// Every authenticated datagram is recorded once, whatever becomes of it. One that is refused is
// acknowledged as that: it is not lost, and to send it again at once would be in vain.
//
// Loss is found by the receiver's report, not by silence: a datagram is lost when a later one was
// acknowledged, and enough others were sent between them or enough time has passed (RFC 9002 6.1).
// Silence makes a probe, whose acknowledgement then tells.

#ifndef FFI_PROTOCOL_PATH_FLOW_H_
#define FFI_PROTOCOL_PATH_FLOW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/ring.h"
#include "ffi/base/time.h"
#include "ffi/protocol/path/congestion_controller.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

// What a datagram carried, as far as its loss matters.
struct SentInfo {
  DatagramKind kind = DatagramKind::kProbe;
  std::uint8_t flags = 0;
  CallId call{};
  SegmentIndex segment{};
};

struct Delivery {
  enum class Outcome : std::uint8_t {
    kDelivered,
    kLost,
    kRefused,  // it arrived, and the peer does not take it for now
  };
  SentInfo info;
  Outcome outcome = Outcome::kLost;
};

struct FlowOptions {
  std::size_t window_bytes_max = 0;  // what the peer's socket holds, divided among its senders
  std::size_t datagram_bytes_max = 0;
  std::size_t sharers = 1;       // peers, this one included, that may send to it at the same time
  WindowedMin* paths = nullptr;  // of all flows of this rank
  bool same_host = false;        // there is no network between
};

// A path that loses all datagrams of some length, and none that are shorter: a black hole of RFC
// 8899 (4.3).
struct BlackHole {
  std::size_t lost_bytes = 0;       // of the shortest that did not
  std::size_t delivered_bytes = 0;  // of the longest that arrived meanwhile
};

// When a datagram that arrived is to be acknowledged: with others, or at once.
enum class Acknowledge { kNot, kSoon, kAtOnce };

class Flow {
 public:
  explicit Flow(const FlowOptions& options);

  // ---- Sending.

  // See FlowOptions: others send to the peer than before.
  void SetSharers(std::size_t sharers, std::size_t window_bytes_max) {
    rate_.SetSharers(sharers, window_bytes_max);
  }
  // True while the window has room for `bytes` more.
  bool CanSend(std::size_t bytes) const;
  // True when the pace allows the next batch, otherwise timeout() says when it does, and unless
  // there is room for a small one only, to which an acknowledgement will soon add. A batch leaves
  // as one: this is asked before it, not within it.
  bool MayStart(Instant now);
  std::size_t BurstBytes() const { return rate_.BurstBytes(); }
  // By how much more may be under way, and how much faster it may leave, than the path alone would
  // allow; 1: not at all.
  void SetWeight(double weight);
  // True while a datagram of this length would be sent in vain, but for a trial now and then:
  // timeout() says when.
  bool Withholds(Instant now, std::size_t bytes);
  // True while one more can be tracked; control datagrams need no window.
  bool CanTrack() const { return under_way_.size() < kUnderWayMax; }
  // The number for a datagram that leaves now and whose delivery is of interest.
  // `batch_bytes`: length of the datagrams of its batch, which a host may refuse as a whole.
  std::uint64_t Track(Instant now, const SentInfo& info, std::size_t bytes,
                      std::size_t batch_bytes);
  // The number for one that is not: an acknowledgement.
  std::uint64_t Untracked() { return next_number_++; }

  // Both return the deliveries that became known, valid until the next call of either.
  const std::vector<Delivery>& HandleAcknowledgement(Instant now, const Acknowledgement& news);
  const std::vector<Delivery>& HandleTimeout(Instant now);
  // Something waits for room in the window: a probe is due if none will come without it.
  void AskForRoom();
  // True once after each time that a probe is due; the caller then sends one.
  bool PopProbe();
  bool probe_due() const { return probe_due_; }
  // Without one acknowledgement for several probes: sending more would be in vain for now.
  bool unanswered() const;

  // For so long the peer has answered, and no datagram of this length has arrived. Until one does.
  std::optional<BlackHole> black_hole(Duration patience) const;

  // ---- Receiving.

  // True when the number was received before, or is too old to tell.
  bool Seen(std::uint64_t number) const;
  // Notes a datagram that has come, once. `refused`: it has no effect, and may come again under
  // another number.
  void Record(Instant now, std::uint64_t number, Acknowledge acknowledge, bool refused);
  // What was recorded, one at least that wants an acknowledgement, is acknowledged at once.
  void AcknowledgeAtOnce(Instant now) { acknowledge_at_ = std::min(acknowledge_at_, now); }
  // Numbers that the peer has used, as far as is known, and how many of them were recorded.
  std::uint64_t expected() const { return largest_seen_ ? *largest_seen_ + 1 : 0; }
  std::uint64_t recorded() const { return recorded_; }
  bool AcknowledgementDue(Instant now) const;
  Acknowledgement MakeAcknowledgement(Instant now);

  // When HandleTimeout has to be called, an acknowledgement falls due, or the pace allows a batch
  // that was held back.
  Instant timeout() const;

  std::size_t window_bytes() const;
  std::size_t share_bytes() const { return rate_.share_bytes(); }

 private:
  struct InFlight {
    std::uint64_t number = 0;
    Instant sent_at{};
    SentInfo info{};
    std::uint32_t bytes = 0;
    std::uint32_t batch_bytes = 0;  // at least `bytes`
    bool resolved = false;
  };

  std::size_t Room() const { return window_bytes() - std::min(in_flight_bytes_, window_bytes()); }
  // Whether the peer, without being asked, will soon acknowledge something.
  bool WillHear() const;
  void MeasureRoundTrip(Duration sample);
  void Resolve(InFlight& datagram, Delivery::Outcome outcome);
  void DetectLoss(Instant now);
  void NoteLength(Instant now, std::size_t bytes, bool lost);
  void NoteTrial(Instant now, std::size_t bytes);
  void StartRoundTrip(Instant now);
  void EndRoundTrip(Instant now);
  void PopResolved();
  Duration ProbeInterval(int unanswered) const;

  FlowOptions options_;

  std::uint64_t next_number_ = 0;
  // Chosen: more than the window of the fastest path here (2 MB of 1472-byte datagrams to one
  // peer); a bound on memory, not on speed.
  static constexpr std::size_t kUnderWayMax = 2048;
  Ring<InFlight> under_way_;   // in order of number
  std::size_t in_flight_ = 0;  // datagrams
  std::size_t unasked_ = 0;    // datagrams after the last probe
  std::size_t in_flight_bytes_ = 0;
  std::optional<std::uint64_t> largest_acknowledged_;
  Instant overtaken_lost_at_ = kNever;  // when one before that is taken for lost
  Instant last_sent_at_{};
  Instant last_progress_at_{};
  bool probe_due_ = false;
  int probes_unanswered_ = 0;
  std::vector<Delivery> fates_;

  // Datagrams that were lost, while none of their length arrived and the peer answered.
  struct LostLong {
    std::size_t bytes = 0;  // of the shortest; 0: none
    std::uint32_t count = 0;
    Instant first{};
    Instant last{};
    std::size_t delivered_bytes = 0;  // the longest that arrived meanwhile

    void Lose(Instant now, std::size_t length);
    void Deliver(std::size_t length);
    // Too many for chance.
    bool certain() const;
  };
  LostLong lost_long_;
  // The same of datagrams that `lost_long_` has as arriving: the path may take less than then.
  LostLong narrower_;
  int long_trials_ = 0;     // long datagrams that were sent since that is certain
  Instant long_at_{};       // when the next may leave
  bool long_held_ = false;  // one waits for that

  bool measured_ = false;
  Duration smoothed_{};
  Duration variation_{};

  double weight_ = 1;
  CongestionController rate_;
  RoundTrip round_trip_;  // the one that is being measured
  Instant round_trip_start_{};
  std::uint64_t round_trip_first_ = 0;  // the number whose acknowledgement ends it
  Instant send_at_{};                   // when the pace allows the next batch
  bool held_back_ = false;              // a batch waits for it

  // Chosen: twice what a peer may have under way, so that nothing in time is taken for too old.
  static constexpr std::size_t kSeenBits = 4096;
  using NumberBits = std::array<std::uint64_t, kSeenBits / 64>;  // of number n at n % kSeenBits
  static bool Bit(const NumberBits& bits, std::uint64_t number) {
    return (bits[number % kSeenBits / 64] >> (number % 64)) & 1;
  }
  static void SetBit(NumberBits& bits, std::uint64_t number) {
    bits[number % kSeenBits / 64] |= std::uint64_t{1} << (number % 64);
  }
  NumberBits seen_{};
  NumberBits refused_{};  // of these
  std::optional<std::uint64_t> largest_seen_;
  std::optional<std::uint64_t> largest_refused_;
  std::uint64_t recorded_ = 0;
  std::optional<std::uint64_t> largest_wanted_;  // of those that want an acknowledgement
  Instant largest_wanted_at_{};
  std::uint64_t last_acknowledged_ = 0;  // `largest` of the last acknowledgement
  std::size_t acknowledge_every_;
  std::size_t unacknowledged_ = 0;
  Instant acknowledge_at_ = kNever;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_FLOW_H_
