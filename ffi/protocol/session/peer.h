// What an endpoint knows of one other rank.

#ifndef FFI_PROTOCOL_SESSION_PEER_H_
#define FFI_PROTOCOL_SESSION_PEER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/ring.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/crypto/seal.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/path/flow.h"
#include "ffi/protocol/session/answer_time.h"
#include "ffi/protocol/session/refusals.h"

namespace optireduce {

// The key of the datagrams from one rank to another. No two uses share a key: sessions, lanes,
// directions and protections have their own, and a number, the nonce, is used once in each of them.
Result<Key> DirectionKey(const EndpointOptions& options, Rank from, Rank to);
// Which seals and opens them.
Result<Sealer> DirectionSealer(const EndpointOptions& options, Rank from, Rank to);

struct Peer {
  Peer(Rank the_rank, const FlowOptions& options, Sealer to, Sealer from)
      : rank(the_rank), flow(options), seal(std::move(to)), open(std::move(from)) {}

  Rank rank;
  Flow flow;
  Holds holds;
  // When something has to be done that concerns this peer alone.
  Instant timeout() const { return std::min(flow.timeout(), holds.timeout()); }
  // How many may send to the peer at the same time, as it said last.
  std::uint8_t incast = UINT8_MAX;
  Sealer seal;  // datagrams to the peer
  Sealer open;  // datagrams from the peer

  // Nothing is sent to it, nothing is kept for it.
  bool gone() const { return left || removed || (lost && !awaited); }
  // It is silent, and where agreement is `stuck` nothing can be decided about it: nothing is sent
  // to it until it is heard.
  bool muted(bool stuck) const { return stuck && lost && awaited; }
  // A call that waits for it waits in vain.
  bool unreachable() const { return left || removed || lost; }
  const std::string& why_gone() const { return removed ? *removed : left ? *left : *lost; }

  Instant last_heard{};  // an authenticated datagram
  Instant asked{};       // the first datagram to it since then that wants an answer
  // A peer that nobody asks is not silent.
  Duration Silence(Instant now) const { return now - std::max(last_heard, asked); }
  // It was asked since it was heard last.
  bool AwaitsAnswer() const { return asked > last_heard; }
  void Heard(Instant now, Duration peer_timeout) {
    // Before the first time its process may not have started.
    if (AwaitsAnswer() && last_heard > Instant{}) answer_time.Note(now, now - asked, peer_timeout);
    last_heard = now;
  }
  // The silence from which on calls do not wait for it. What is usual is not known before it was
  // heard.
  Duration Patience(Duration peer_timeout) const {
    return last_heard > Instant{} ? answer_time.Patience(peer_timeout) : peer_timeout;
  }
  AnswerTime answer_time;
  std::optional<std::string> left;     // it said that it leaves, and why
  std::optional<std::string> lost;     // it was silent for too long; until it is heard again
  bool black_hole = false;             // long datagrams to it do not arrive; short ones do
  bool awaited = false;                // though lost, it is kept what it has coming: see Membership
  std::optional<std::string> removed;  // the others go on without it

  // Announcements, probes and the farewell, in order. Bounded by what is open: each is queued once.
  Ring<SentInfo> control;
  // Calls that may have something to send to the peer, in the order of their opening: those that
  // somebody waits for, and those that are over, whose data goes behind.
  Ring<CallId> ready;
  Ring<CallId> backlog;
  bool HasQueued() const { return !control.empty() || !ready.empty() || !backlog.empty(); }
  void DropQueued() {
    control.clear();
    ready.clear();
    backlog.clear();
    holds.Clear();
  }
  std::uint32_t turns = 0;  // of sending segments to it

  enum class Farewell : std::uint8_t { kNone, kWanted, kSent, kDelivered };
  Farewell farewell = Farewell::kNone;

  // Calls in which the peer said that it waits.
  struct Waiting {
    CallId call;
    Instant first;
    Instant last;
  };
  std::vector<Waiting> waiting;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_PEER_H_
