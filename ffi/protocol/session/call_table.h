// The calls that are open at this rank: made by its program or begun by peers, and not yet done for
// all members.

#ifndef FFI_PROTOCOL_SESSION_CALL_TABLE_H_
#define FFI_PROTOCOL_SESSION_CALL_TABLE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/call/exchange.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/peers/peer_table.h"

namespace optireduce {

struct OpenCall {
  OpenCall(Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
           const ExchangeOptions& options)
      : exchange(collective, sequence, now, pool, options), queued(collective.layout.members()) {}

  Exchange exchange;
  std::vector<bool> queued;  // the members in whose queues the call stands
  Buffer final_drain{};      // the bucket of a final drain
};

class CallLifecycle;

class CallTable {
 public:
  // All must outlive this.
  CallTable(const EndpointOptions& options, const PeerTable& peers, BufferPool& pool)
      : options_(options), peers_(peers), pool_(pool) {}

  // Null where the call is not open.
  OpenCall* Find(CallId call) {
    const auto at = calls_.find(call);
    return at == calls_.end() ? nullptr : &at->second;
  }
  const OpenCall* Find(CallId call) const {
    const auto at = calls_.find(call);
    return at == calls_.end() ? nullptr : &at->second;
  }
  bool Contains(CallId call) const { return calls_.contains(call); }
  // The member is known to have made the call; it may have ended it without this rank.
  bool HasCalled(const Collective& collective, Sequence sequence, bool drain, Rank member) const;
  // The call is open.
  OpenCall& At(CallId call) { return calls_.at(call); }
  const OpenCall& At(CallId call) const { return calls_.at(call); }

  // Opens a call that is not open.
  OpenCall& Open(Instant now, Collective& collective, Sequence sequence, bool drain);

  // The calls in ascending order: `for (auto& [call, open] : table)`.
  auto begin() { return calls_.begin(); }
  auto end() { return calls_.end(); }
  auto begin() const { return calls_.begin(); }
  auto end() const { return calls_.end(); }
  // Calls `visit(call, open)` for those of a collective, in ascending order; `visit` erases none.
  template <typename Visit>
  void ForEach(CollectiveId collective, Visit visit) {
    ForEachOf(calls_, collective, visit);
  }
  template <typename Visit>
  void ForEach(CollectiveId collective, Visit visit) const {
    ForEachOf(calls_, collective, visit);
  }

 private:
  // It alone ends calls.
  friend CallLifecycle;
  void Erase(CallId call) { calls_.erase(call); }

  WireFormat ChooseFormat(Instant now, Collective& collective) const;
  // The time in which this rank's data in a call leaves as float32, at the rates that were measured
  // last.
  Duration WireTime(const Collective& collective) const;
  template <typename Calls, typename Visit>
  static void ForEachOf(Calls& calls, CollectiveId collective, Visit visit) {
    auto at = calls.lower_bound({.collective = collective, .sequence = Sequence(0)});
    for (; at != calls.end() && at->first.collective == collective; ++at) {
      visit(at->first, at->second);
    }
  }

  const EndpointOptions& options_;
  const PeerTable& peers_;
  BufferPool& pool_;
  std::map<CallId, OpenCall> calls_;
  // The order for each number of members, and position of this rank among them.
  std::map<std::pair<std::uint16_t, MemberIndex>, std::vector<MemberIndex>> send_orders_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_CALL_TABLE_H_
