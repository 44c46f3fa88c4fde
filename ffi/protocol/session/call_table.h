// The calls that are open at this rank: made by its program or begun by peers, and not yet done for
// all members.

#ifndef FFI_PROTOCOL_SESSION_CALL_TABLE_H_
#define FFI_PROTOCOL_SESSION_CALL_TABLE_H_

#include <map>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/call/collective.h"
#include "ffi/protocol/call/exchange.h"

namespace optireduce {

struct OpenCall {
  OpenCall(const Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
           const ExchangeOptions& options)
      : exchange(collective, sequence, now, pool, options), queued(collective.layout.members()) {}

  Exchange exchange;
  std::vector<bool> queued;  // by member: the call stands in a queue of that peer
  Buffer final_drain{};      // of a final drain: its bucket
};

class CallTable {
 public:
  // Null when the call is not open.
  OpenCall* Find(CallId call) {
    const auto at = calls_.find(call);
    return at == calls_.end() ? nullptr : &at->second;
  }
  const OpenCall* Find(CallId call) const {
    const auto at = calls_.find(call);
    return at == calls_.end() ? nullptr : &at->second;
  }
  bool Contains(CallId call) const { return calls_.contains(call); }
  // The call is open.
  OpenCall& At(CallId call) { return calls_.at(call); }
  const OpenCall& At(CallId call) const { return calls_.at(call); }

  // The call is not open yet.
  OpenCall& Add(const Collective& collective, Sequence sequence, Instant now, BufferPool& pool,
                const ExchangeOptions& options) {
    const auto [at, inserted] =
        calls_.try_emplace({.collective = collective.id, .sequence = sequence}, collective,
                           sequence, now, pool, options);
    OR_CHECK(inserted);
    return at->second;
  }
  void Erase(CallId call) { calls_.erase(call); }
  template <typename Predicate>
  void EraseIf(Predicate predicate) {
    std::erase_if(calls_, [&](const auto& entry) { return predicate(entry.second.exchange); });
  }

  // In ascending order: `for (auto& [call, open] : table)`.
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
  template <typename Calls, typename Visit>
  static void ForEachOf(Calls& calls, CollectiveId collective, Visit visit) {
    auto at = calls.lower_bound({.collective = collective, .sequence = Sequence(0)});
    for (; at != calls.end() && at->first.collective == collective; ++at) {
      visit(at->first, at->second);
    }
  }

  std::map<CallId, OpenCall> calls_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_CALL_TABLE_H_
