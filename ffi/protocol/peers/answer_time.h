// How long the answers of one peer take at most while all is well, and so how long a silence says
// that it does not answer: its process is frozen or dead, or the way to it is cut.

#ifndef FFI_PROTOCOL_PEERS_ANSWER_TIME_H_
#define FFI_PROTOCOL_PEERS_ANSWER_TIME_H_

#include <algorithm>
#include <chrono>

#include "ffi/base/time.h"

namespace optireduce {

class AnswerTime {
 public:
  // The peer was heard, `gap` after it was asked.
  void Record(Instant now, Duration gap, Duration peer_timeout) {
    if (now - since_ > kMemory / 2) {
      before_ = recent_;
      recent_ = Duration::zero();
      since_ = now;
    }
    // A silence in which it did not answer says little of what is usual: it counts as the shortest
    // such silence, so that a peer that is away again and again is waited for twice as long each
    // time.
    recent_ = std::max(recent_, std::min(gap, Patience(peer_timeout)));
  }

  // The silence from which on the peer does not answer; at most `peer_timeout`.
  Duration Patience(Duration peer_timeout) const {
    return std::min(std::max(kFactor * std::max(recent_, before_), kPatienceMin), peer_timeout);
  }

 private:
  // Chosen: an answer that takes twice as long as any in the last minutes is none.
  static constexpr int kFactor = 2;
  // Chosen: a host with more work than cores keeps a thread waiting for some 100 ms, and by then
  // eight probes in a row were lost (kProbeIntervalMax of flow.cc).
  static constexpr Duration kPatienceMin = std::chrono::seconds(1);
  // Chosen: longer than the period of recurring work in a job: checkpoints, evaluations, backups.
  static constexpr Duration kMemory = std::chrono::minutes(4);

  Duration recent_{};  // the longest gap of this half of the memory
  Duration before_{};  // the longest gap of the half before
  Instant since_{};
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PEERS_ANSWER_TIME_H_
