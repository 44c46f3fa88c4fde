// All other ranks, and which of them may have something to do: of a thousand peers most are quiet
// most of the time, and a look at each of them for each batch would take long.

#ifndef FFI_PROTOCOL_SESSION_PEER_TABLE_H_
#define FFI_PROTOCOL_SESSION_PEER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/min_tree.h"
#include "ffi/base/time.h"
#include "ffi/protocol/session/peer.h"

namespace optireduce {

class PeerTable {
 public:
  PeerTable(Rank self, std::uint16_t world_size)
      : peers_(world_size),
        quiet_until_(world_size, Instant::min()),
        timeouts_(world_size, Instant::min()) {
    quiet_until_.Set(self.index(), kNever);
    timeouts_.Set(self.index(), kNever);
  }
  void Add(Rank rank, std::unique_ptr<Peer> peer) { peers_[rank.index()] = std::move(peer); }
  std::size_t size() const { return peers_.size(); }

  // A peer that is about to change: it may have something to send afterwards, or another timeout.
  Peer& Touch(Rank rank) {
    quiet_until_.Set(rank.index(), Instant::min());
    timeouts_.Set(rank.index(), Instant::min());
    return *peers_[rank.index()];
  }
  // A peer whose queues and timeouts stay as they are. Null for this rank.
  Peer* operator[](std::size_t rank) const { return peers_[rank].get(); }
  Peer* operator[](Rank rank) const { return peers_[rank.index()].get(); }
  auto begin() const { return peers_.begin(); }
  auto end() const { return peers_.end(); }

  // The first peer from `first` on that may have something to send; size() if there is none.
  std::size_t NextToSend(Instant now, std::size_t first) const {
    return quiet_until_.FirstBefore(now + Duration(1), first);
  }
  // There was nothing to send to the peer.
  void NoteQuiet(Rank rank) {
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
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank
  // By rank, and until the peer is touched: before when there is nothing to send to it, and its
  // timeout; Instant::min() where that is not known.
  MinTree quiet_until_;
  mutable MinTree timeouts_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_PEER_TABLE_H_
