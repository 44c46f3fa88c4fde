// The members of the session, as its ranks have agreed on them.

#ifndef FFI_PROTOCOL_MEMBERSHIP_VIEW_H_
#define FFI_PROTOCOL_MEMBERSHIP_VIEW_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ffi/base/ids.h"

namespace optireduce {

// The members, and the first call of each bucket with exactly these; an unlisted bucket had no call
// before. A view may equal the one before, if a suspect turns out to live.
struct View {
  std::uint32_t number = 0;  // 0 has all ranks
  std::vector<Rank> members;
  std::vector<CallId> firsts;  // ascending; each by its bucket

  bool Has(Rank rank) const { return std::ranges::binary_search(members, rank); }
  // The first call of the bucket in which only the members take part.
  Sequence FirstOf(CollectiveId bucket) const {
    const auto at = std::ranges::lower_bound(firsts, bucket, {}, &CallId::collective);
    return at == firsts.end() || at->collective != bucket ? Sequence(0) : at->sequence;
  }
  friend bool operator==(const View&, const View&) = default;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_MEMBERSHIP_VIEW_H_
