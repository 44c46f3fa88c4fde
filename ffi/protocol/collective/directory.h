// The collectives that this rank knows, by identity and by name. Bounded; never forgets, since a
// program has few of them and calls each of them many times.

#ifndef FFI_PROTOCOL_COLLECTIVE_DIRECTORY_H_
#define FFI_PROTOCOL_COLLECTIVE_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/options.h"

namespace optireduce {

// The timing of collectives, by IdWithoutMembers().
using Timings = std::map<CollectiveId, CallTiming>;

class Directory {
 public:
  // Collectives that one process can name. Chosen: far more call sites than a program has, and some
  // 20 MB; detects a new name for every step.
  static constexpr std::size_t kCollectivesMax = 1 << 16;

  explicit Directory(const EndpointOptions& options);

  // The collective of this spec, new or known. `self` must be one of its members. The description
  // is the first that is not empty. An error when another collective has the same identity, or the
  // directory is full.
  Result<Collective*> FindOrAdd(const CollectiveSpec& spec);
  std::size_t size() const { return by_id_.size(); }
  // The timing of each collective; if its members have changed, the newest one with learned
  // deadlines.
  Timings FindTimings() const;
  // The collectives, known ones and later ones, continue those of an earlier session.
  void ContinueFrom(Timings earlier);
  // Null when it is not known.
  Collective* Find(CollectiveId id) const;
  // All with this name, in the order in which they were learnt.
  const std::vector<Collective*>& Named(const std::string& name) const;
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [id, collective] : by_id_) visit(*collective);
  }
  // A collective that `member` announced before `limit` and that this rank has never called, if
  // any.
  const Collective* FindAnnouncedOnly(Rank member, Instant limit) const;

 private:
  // Null if there is none.
  const CallTiming* FindEarlier(const CollectiveSpec& spec) const;

  Rank rank_;
  std::size_t payload_bytes_max_;
  std::size_t shard_bytes_min_;
  Presence presence_;
  Timings earlier_;
  std::map<CollectiveId, std::unique_ptr<Collective>> by_id_;
  std::map<std::string, std::vector<Collective*>, std::less<>> by_name_;
};

// "call 3 of grads: float32[10], exact": the name of one side of a disagreement in messages.
std::string Describe(const CollectiveSpec& spec, Sequence sequence);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_DIRECTORY_H_
