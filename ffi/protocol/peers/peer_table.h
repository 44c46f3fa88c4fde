// All peers, and which of them may have something to do. Most of a thousand peers are quiet most of
// the time, and a look at each of them for each batch takes long.

#ifndef FFI_PROTOCOL_PEERS_PEER_TABLE_H_
#define FFI_PROTOCOL_PEERS_PEER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/base/min_tree.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/peers/peer.h"

namespace optireduce {

class PeerTable {
 public:
  // `options` must outlive this.
  explicit PeerTable(const EndpointOptions& options);
  // Makes the peers. An error where the keys cannot be derived.
  Status Connect();
  // The members have a new collective with this rank.
  void ShareWindows(const CollectiveSpec& spec);

  std::size_t size() const { return peers_.size(); }

  // A peer that changes: it may have something to send afterwards, or another timeout.
  Peer& Touch(Rank rank) {
    quiet_until_.Set(rank.index(), Instant::min());
    timeouts_.Set(rank.index(), Instant::min());
    return *peers_[rank.index()];
  }
  // A peer whose queues and timeouts stay as they are. Null for this rank.
  Peer* operator[](std::size_t rank) const { return peers_[rank].get(); }
  Peer* operator[](Rank rank) const { return peers_[rank.index()].get(); }
  // All peers, whose queues and timeouts stay as they are.
  auto others() const {
    return peers_ | std::views::filter([](const auto& peer) { return peer != nullptr; }) |
           std::views::transform([](const auto& peer) -> Peer& { return *peer; });
  }

  // The peers for which `predicate` holds.
  template <typename Predicate>
  std::vector<Rank> RanksOf(Predicate predicate) const {
    std::vector<Rank> ranks;
    for (const Peer& peer : others()) {
      if (predicate(peer)) ranks.push_back(peer.rank);
    }
    return ranks;
  }

  // The first peer from `first` on that may have something to send; size() if there is none.
  std::size_t NextToSend(Instant now, std::size_t first) const {
    return quiet_until_.FirstBefore(now + Duration(1), first);
  }
  // There was nothing to send to the peer.
  void RecordQuiet(Rank rank) {
    const Peer& peer = *peers_[rank.index()];
    if (peer.HasQueued() || peer.flow.probe_due()) return;
    const Instant timeout = peer.timeout();
    quiet_until_.Set(rank.index(), timeout);
    timeouts_.Set(rank.index(), timeout);
  }

  // The first peer from `first` on that may have a timeout to handle; size() if there is none.
  std::size_t NextDue(Instant now, std::size_t first) const {
    return timeouts_.FirstBefore(now + Duration(1), first);
  }
  // The earliest timeout of the peers that `counts(peer)` is true for, if it is before `at`.
  template <typename Predicate>
  Instant TimeoutBefore(Instant at, Predicate counts) const {
    for (std::size_t r = timeouts_.FirstBefore(at); r < size();
         r = timeouts_.FirstBefore(at, r + 1)) {
      const Peer& peer = *peers_[r];
      if (timeouts_[r] == Instant::min()) timeouts_.Set(r, peer.timeout());
      if (timeouts_[r] < at && counts(peer)) at = timeouts_[r];
    }
    return at;
  }

 private:
  bool IsOnThisHost(Rank rank) const;
  // Bytes that may be under way to a peer.
  std::size_t WindowBytesMax(Rank to, std::size_t sharers) const;

  const EndpointOptions& options_;
  WindowedMin min_rtt_;  // the minimum over the flows to all peers, which it outlives
  // The peers that have a collective with this rank. A receive buffer is divided among the ranks
  // that send to it. Their number at a peer is estimated by the number here, which is equal where
  // groups are alike; elsewhere the congestion controllers correct it.
  Bitmap sharers_;
  std::vector<std::unique_ptr<Peer>> peers_;  // one for each rank
  // One for each rank, valid until the peer is touched: the time before which there is nothing to
  // send to it, and its timeout. Instant::min(): unknown.
  MinTree quiet_until_;
  mutable MinTree timeouts_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PEERS_PEER_TABLE_H_
