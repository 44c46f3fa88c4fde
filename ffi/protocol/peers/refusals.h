// Refused calls, seen from both sides: calls too far ahead of a rank's program, or beyond its
// memory for early calls. The receiver lists them in each acknowledgement; the sender holds back
// their data, asks now and then for the current list, and continues once they are off it. (Credits
// would do the same, but a rank does not know how many calls its program is about to make.)

#ifndef FFI_PROTOCOL_PEERS_REFUSALS_H_
#define FFI_PROTOCOL_PEERS_REFUSALS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"

namespace optireduce {

// The calls that this rank refuses, and the peers that it has refused.
class Refusals {
 public:
  // Data of this call was refused to `rank`, which waits for this rank in it unless this one is
  // `suspended`. True if `rank` does not know it.
  bool Add(CallId call, Rank rank, bool suspended);
  // The first call of each collective that `rank` is refused.
  std::vector<CallId> Of(Rank rank) const;
  // `rank` is gone: its refusals are dropped.
  void Forget(Rank rank);
  bool empty() const { return refused_.empty(); }

  // Ends those for which `takes(call, suspended)`, and calls `tell(rank)` for each.
  template <typename Takes, typename Tell>
  void Lift(Takes takes, Tell tell) {
    for (auto it = refused_.begin(); it != refused_.end();) {
      auto& [collective, refused] = *it;
      const CallId call{.collective = collective, .sequence = refused.first};
      std::erase_if(refused.ranks, [&](const auto& rank) {
        const bool lifted = takes(call, rank.second);
        if (lifted) tell(rank.first);
        return lifted;
      });
      it = refused.ranks.empty() ? refused_.erase(it) : std::next(it);
    }
  }

 private:
  // Collectives that are remembered; the data of others is refused without a word, and its sender
  // falls back to time. Chosen: about as many as the acknowledgement of the usual largest datagram,
  // 8,972 bytes, can list.
  static constexpr std::size_t kCollectivesMax = 1024;
  struct Refused {
    Sequence first;
    std::map<Rank, bool> ranks;  // the ranks, and whether this rank is suspended there
  };
  std::map<CollectiveId, Refused> refused_;
};

// The calls of this rank that one peer refuses.
class RefusedCalls {
 public:
  // The peer's list, from the acknowledgement of that number. Returns the collectives of which it
  // takes more than before.
  std::vector<CollectiveId> Update(Instant now, std::uint64_t number, std::vector<CallId> refusals);
  // A datagram of the call came back as refused. If the list does not say so, the call is held by
  // time: as long again as it has been refused, up to kAskIntervalMax.
  void Refused(Instant now, CallId call);
  // One was taken.
  void Delivered(CallId call);
  // Nothing of the call is to be sent now.
  bool Contains(Instant now, CallId call) const;
  // Something that is listed waits to be sent: the peer is to be asked.
  void Ask(Instant now);
  // True when the peer is to be asked now: its answer is an acknowledgement, with the list.
  bool PopAsk(Instant now);
  // Calls whose time of being held is over.
  std::vector<CallId> PopExpired(Instant now);
  // When either of these has something to do.
  Instant timeout() const;
  const std::vector<CallId>& listed() const { return listed_; }
  void Clear();

 private:
  // Chosen: two probes and two acknowledgements a second are nothing, and this is the longest that
  // a peer's program may wait where the acknowledgement that lifts a refusal is lost.
  static constexpr Duration kAskIntervalMax = std::chrono::milliseconds(500);
  // Chosen: as the first probe of a flow.
  static constexpr Duration kAskIntervalMin = std::chrono::milliseconds(10);
  // A share of the time since the list has changed. Chosen: by so much a lost acknowledgement makes
  // a refusal longer, at most.
  static constexpr int kAskPart = 4;
  // Chosen: a sender has a few calls under way; of more the oldest is sent again at once.
  static constexpr std::size_t kTimedMax = 64;
  struct Timed {
    CallId call;
    Instant since;
    Instant until;
    bool waits = false;  // it waits for `until`
  };

  bool Listed(CallId call) const;

  std::vector<CallId> listed_;  // ascending, one of each collective
  std::uint64_t number_ = 0;    // number of the acknowledgement that listed them
  Instant changed_at_{};        // the list
  Instant ask_at_ = kNever;
  std::vector<Timed> timed_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PEERS_REFUSALS_H_
