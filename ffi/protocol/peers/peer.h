// The state of one other rank, as an endpoint knows it.

#ifndef FFI_PROTOCOL_PEERS_PEER_H_
#define FFI_PROTOCOL_PEERS_PEER_H_

#include <algorithm>
#include <cstddef>
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
#include "ffi/protocol/peers/answer_time.h"
#include "ffi/protocol/peers/refusals.h"
#include "ffi/protocol/stats.h"

namespace optireduce {

// The key of the datagrams from one rank to another. No two uses share a key: sessions, lanes,
// directions and protections have their own, and a number, the nonce, is used once in each of them.
Result<Key> DirectionKey(const EndpointOptions& options, Rank from, Rank to);
// The sealer with that key: it seals the datagrams, and opens them.
Result<Sealer> DirectionSealer(const EndpointOptions& options, Rank from, Rank to);

enum class PeerState : std::uint8_t {
  kAlive,
  kSuspected,            // silent for too long; its data is kept until the members have agreed
  kSilent,               // silent for too long, until it is heard; nothing is kept for it
  kLeft,                 // it has said that it leaves
  kRemoved,              // removed: the others continue without it
  kRemovedAfterLeaving,  // both
};

struct Peer {
  Peer(Rank the_rank, const PathFacts& options, Sealer to, Sealer from)
      : rank(the_rank), flow(options), seal(std::move(to)), open(std::move(from)) {}

  Rank rank;
  Flow flow;
  RefusedCalls refused_calls;
  // When something has to be done that concerns this peer alone.
  Instant timeout() const { return std::min(flow.timeout(), refused_calls.timeout()); }
  // Number of ranks that may send to the peer at the same time, as it advertised last.
  std::uint8_t incast = UINT8_MAX;
  Sealer seal;  // datagrams to the peer
  Sealer open;  // datagrams from the peer
  PeerTraffic traffic;

  PeerState state() const { return state_; }
  // The reason for the state, as errors say it; empty while the peer is alive.
  const std::string& why() const { return why_; }
  // The blame in the error of a call that waits for it in vain.
  Blame blame() const {
    return {.cause = black_hole && silent() ? Cause::kPathTooSmall : Cause::kPeerLost,
            .ranks = {rank}};
  }
  // Written by FailureDetector alone.
  void SetState(PeerState state, std::string why) {
    state_ = state;
    why_ = std::move(why);
  }
  // Nothing is sent to it, nothing is kept for it.
  bool gone() const { return state_ > PeerState::kSuspected; }
  // A call that waits for it waits in vain.
  bool unreachable() const { return state_ != PeerState::kAlive; }
  bool silent() const { return state_ == PeerState::kSuspected || state_ == PeerState::kSilent; }
  bool left() const {
    return state_ == PeerState::kLeft || state_ == PeerState::kRemovedAfterLeaving;
  }
  bool removed() const { return state_ >= PeerState::kRemoved; }
  // Where agreement is `stuck`, a suspect gets nothing until it is heard.
  bool muted(bool stuck) const { return stuck && state_ == PeerState::kSuspected; }
  bool black_hole = false;  // long datagrams to it do not arrive; short ones do
  // A rank that the peer's own long datagrams do not reach, as the peer says in an agreement on the
  // members; `lost_bytes` is 0 if there is none.
  struct NarrowPath {
    Rank to;
    std::uint16_t lost_bytes = 0;
    std::uint16_t delivered_bytes = 0;
  };
  NarrowPath narrow_path;

  // It has acknowledged a probe since the session began, and padded ones up to this length: see
  // Endpoint::ProbePaths().
  bool answered = false;
  std::size_t passed_bytes = 0;

  Instant last_heard{};  // an authenticated datagram
  Instant asked{};       // the first datagram to it since then that wants an answer
  // A peer that is not asked is not silent.
  Duration Silence(Instant now) const { return now - std::max(last_heard, asked); }
  // It was asked since it was heard last.
  bool AwaitsAnswer() const { return asked > last_heard; }
  void Heard(Instant now, Duration peer_timeout) {
    // Before the first time its process may not have started.
    if (AwaitsAnswer() && last_heard > Instant{})
      answer_time.Record(now, now - asked, peer_timeout);
    last_heard = now;
  }
  // The silence after which calls do not wait for it. Its usual response time is unknown until it
  // is heard.
  Duration Patience(Duration peer_timeout) const {
    return last_heard > Instant{} ? answer_time.Patience(peer_timeout) : peer_timeout;
  }
  AnswerTime answer_time;

  // Announcements, probes and the farewell, in order. Bounded by what is open: each is queued once.
  Ring<SentInfo> control;
  bool probing() const {
    return control.AnyOf([](const SentInfo& info) { return info.kind == DatagramKind::kProbe; });
  }
  // Calls that may have something to send to the peer, in the order of their opening: calls that
  // some rank waits for, and calls that are over, whose data goes behind.
  Ring<CallId> ready;
  Ring<CallId> backlog;
  bool HasQueued() const { return !control.empty() || !ready.empty() || !backlog.empty(); }
  void DropQueued() {
    control.clear();
    ready.clear();
    backlog.clear();
    refused_calls.Clear();
  }
  std::uint32_t turns = 0;  // turns of sending segments to it

  enum class Farewell : std::uint8_t { kNone, kWanted, kSent, kDelivered };
  Farewell farewell = Farewell::kNone;

  // Calls in which the peer has said that it waits.
  struct Waiting {
    CallId call;
    Instant first;
    Instant last;
    // A call of this rank that the peer has not reached, while this rank has not made `call`; and
    // since when that holds (MismatchDetector::CheckLone).
    std::optional<CallId> beyond{};
    Instant beyond_since{};
    bool told = false;  // the user was told
  };
  std::vector<Waiting> waiting;

 private:
  PeerState state_ = PeerState::kAlive;
  std::string why_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PEERS_PEER_H_
