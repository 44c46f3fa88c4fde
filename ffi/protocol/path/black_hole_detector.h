// Detection of a path that loses all datagrams from some length on and delivers shorter ones: a
// black hole of RFC 8899 (4.3). Long datagrams are then sent as occasional trials only.

#ifndef FFI_PROTOCOL_PATH_BLACK_HOLE_DETECTOR_H_
#define FFI_PROTOCOL_PATH_BLACK_HOLE_DETECTOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ffi/base/time.h"

namespace optireduce {

struct BlackHole {
  std::size_t lost_bytes = 0;       // length of the shortest lost one
  std::size_t delivered_bytes = 0;  // length of the longest one delivered since
};

class BlackHoleDetector {
 public:
  // While the peer answers: a datagram, or a batch of this length of datagram, was lost.
  void Lost(Instant now, std::size_t bytes);
  void Delivered(std::size_t bytes);
  // A datagram of this length is sent now. Where it is a trial, the next one follows after
  // `interval`.
  void Sent(Instant now, std::size_t bytes, Duration interval);
  // Trials since the black hole is certain.
  int trials() const { return trials_; }
  // A datagram of this length would be lost, and no trial is due.
  bool Blocks(Instant now, std::size_t bytes);
  void HandleTimeout(Instant now) { blocked_ = blocked_ && now < trial_at_; }
  // Time of the next trial, if a datagram waits for it.
  Instant timeout() const { return blocked_ ? trial_at_ : kNever; }

  // Set after the peer has answered for `patience` without a delivery of this length, until one
  // arrives.
  std::optional<BlackHole> Find(Duration patience) const;

 private:
  // Losses by length, while no datagram of such a length arrived.
  struct Losses {
    std::size_t bytes = 0;  // size of the shortest lost datagram; 0: none
    std::uint32_t count = 0;
    Instant first{};
    Instant last{};
    std::size_t delivered_bytes = 0;  // size of the longest one delivered since

    void Add(Instant now, std::size_t length);
    void Deliver(std::size_t length);
    // True if chance is ruled out.
    bool certain() const;
  };

  Losses losses_;
  // Losses of lengths that `losses_` counts as passing: the path may since have become narrower.
  Losses narrower_;
  int trials_ = 0;
  Instant trial_at_{};    // time of the next one
  bool blocked_ = false;  // a datagram waits for it
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_BLACK_HOLE_DETECTOR_H_
