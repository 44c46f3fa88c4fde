// The outgoing datagrams of an endpoint, in their order: acknowledgements first, then control
// datagrams, then segments as far as the window to the peer is open. Peers take turns.

#ifndef FFI_PROTOCOL_SESSION_TRANSMITTER_H_
#define FFI_PROTOCOL_SESSION_TRANSMITTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/ring.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/call/outbox.h"
#include "ffi/protocol/path/incast_controller.h"
#include "ffi/protocol/peers/refusals.h"
#include "ffi/protocol/session/lag_monitor.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/transmit.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class Transmitter {
 public:
  // All must outlive this.
  Transmitter(SessionState& session, const Refusals& refusals, LagMonitor& lag);

  // The call may have something to send to the member, or to all.
  void Queue(OpenCall& open, MemberIndex to);
  void QueueAll(OpenCall& open);
  // Held data of the collective for the peer may be sent.
  void QueueRefused(CollectiveId collective, Rank to);
  // Asks the peer whether it still refuses what this rank has for it.
  void AskRefused(Instant now, Rank to);
  void Announce(const Collective& collective, Sequence sequence);
  // From now on each peer gets one farewell, after the data that this rank has for it.
  void Leave(const Status& why);

  // A call has begun: the batches left to send have to be counted anew.
  void RecordSubmitted() { batches_left_ = 0; }
  // A call has ended: how many may send to this rank from now on?
  void AdaptIncast();
  // A peer is gone or back, or has advertised another incast.
  void RecordIncastOfPeers() { incast_of_peers_.reset(); }

  // The next datagrams to a peer. `stuck`: no agreement can be reached; then peers that are silent
  // and awaited get nothing.
  std::optional<Transmit> Poll(Instant now, bool stuck, std::span<std::byte> buffer,
                               std::size_t batch_max);
  // A message of the membership, which stands in `buffer` behind the header.
  Transmit SealMembership(Rank to, std::size_t payload_bytes, std::span<std::byte> buffer);

 private:
  std::optional<Transmit> PollPeer(Instant now, bool stuck, Rank to, std::span<std::byte> buffer,
                                   std::size_t batch_max);
  std::optional<Transmit> SendAcknowledgement(Instant now, Rank to, std::span<std::byte> buffer);
  std::optional<Transmit> SendControl(Instant now, Rank to, std::span<std::byte> buffer);
  std::optional<Transmit> SendSegments(Instant now, Rank to, std::span<std::byte> buffer,
                                       std::size_t batch_max);
  // Writes a report of calls that this rank has given up; returns its length in bytes.
  std::size_t WriteGivenUp(CallId call, Header& header, std::span<std::byte> payload);
  std::optional<Transmit> SendSegmentsOf(Instant now, Rank to, Ring<CallId>& calls,
                                         std::span<std::byte> buffer, std::size_t batch_max);
  // Completes a datagram with the segments of `run`, in a batch of datagrams of `batch_bytes`.
  void SealSegments(Instant now, Rank to, Exchange& exchange, const CallSender::Run& run,
                    std::size_t batch_bytes, std::span<std::byte> datagram);
  // The segments of one datagram, from `first` on.
  CallSender::Run FindRun(Instant now, Rank to, Exchange& exchange, const Outbox::Item& first);
  // A datagram of `bytes` may join the batch.
  static bool HasRoom(Instant now, const Transmit& batch, std::size_t bytes,
                      std::size_t buffer_bytes, Flow& flow);
  // Chooses the call of the next batch.
  static void Rotate(Ring<CallId>& calls, bool retransmission);
  // The offer of a call to a peer.
  enum class Offer : std::uint8_t {
    kNext,     // a segment
    kLater,    // a segment that cannot be sent now
    kBacklog,  // segments that no rank waits for
    kNone,
  };
  Offer FindOffer(Instant now, Rank to, OpenCall& open, const Ring<CallId>& calls,
                  Outbox::Item& item);
  // The next segment for a peer, and the call of `calls` it belongs to; drops calls that have none.
  OpenCall* NextSegment(Instant now, Rank to, Ring<CallId>& calls, Outbox::Item& item);
  // Completes a datagram, which has its place in the buffer, and adds it to `pieces_`. If its
  // payload lies elsewhere, and need not be encrypted, that part of its place stays unused.
  void Seal(Rank to, Header header, std::span<const std::byte> payload,
            std::span<std::byte> datagram);
  // A transmit of one datagram, whose payload stands in `buffer` behind the header.
  Transmit SealOne(Rank to, const Header& header, std::size_t payload_bytes,
                   std::span<std::byte> buffer);
  void QueueFarewells();
  // To how many peers at a time this rank sends new contributions.
  std::uint16_t IncastOf(const Exchange& exchange);
  // How much more of this rank's link the peer is to have than an equal share.
  double SendWeight(Rank to);
  void FindMeanUnsent();

  const EndpointOptions& options_;
  PeerTable& peers_;
  CallTable& calls_;
  const Directory& directory_;
  Counters& counters_;
  const Refusals& refusals_;
  LagMonitor& lag_;

  Rank next_peer_;                                  // the first that Poll looks at
  std::vector<std::span<const std::byte>> pieces_;  // the pieces of the last Transmit
  std::optional<std::string> leaving_;              // the reason, for peers
  // Segments that one rank has left for another, on average: out of this one, and into it. Counted
  // once for as many batches as there are ranks, since it takes a look at all peers.
  double mean_unsent_ = 0;
  std::uint32_t batches_left_ = 0;

  IncastController incast_;
  std::optional<std::uint16_t> incast_of_peers_;  // the least that they advertise
  struct {
    std::uint64_t expected = 0;
    std::uint64_t recorded = 0;
  } incast_seen_;  // the counts at the end of the last call
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_TRANSMITTER_H_
