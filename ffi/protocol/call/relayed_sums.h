// Sums of other members that this rank forwards. A rank whose program is late has everything to
// send at once while the links of the others are idle: it sends each of its sums to one of them,
// which sends it to all the rest.
//
// Its link then carries its contributions and its sums once, S bytes in all, instead of 2 S.
// Source: S is the bound of StragglAR (Devraj et al., 2025, arXiv:2505.23523).

#ifndef FFI_PROTOCOL_CALL_RELAYED_SUMS_H_
#define FFI_PROTOCOL_CALL_RELAYED_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/bucket/segment_store.h"
#include "ffi/protocol/collective/collective.h"

namespace optireduce {

class RelayedSums {
 public:
  // Both must outlive this.
  RelayedSums(const Collective& collective, BufferPool& pool);

  // A sum that this rank forwards to all members but its owner; false if no member is left to get
  // it. At most once for a segment.
  bool Add(SegmentIndex segment, std::span<const std::byte> sum);
  std::span<const std::byte> Sum(SegmentIndex segment) const;

  struct Item {
    SegmentIndex segment;
    bool retransmission = false;
  };
  // The next one for a member: those that were lost come first.
  std::optional<Item> Next(MemberIndex to);
  // Takes the item that Next() returned.
  void Pop(MemberIndex to);
  void Retransmit(MemberIndex to, SegmentIndex segment);
  // The member has the sum. A sum that all have is not kept.
  void Deliver(MemberIndex to, SegmentIndex segment);
  bool Delivered(MemberIndex to, SegmentIndex segment) const;
  // The member has all of them.
  bool Delivered(MemberIndex to) const { return members_[to.index()].undelivered == 0; }
  // The member is gone.
  void DropPeer(MemberIndex to);
  // The number of sums that are still to be sent to the member for the first time.
  std::uint32_t Unsent(MemberIndex to) const;

 private:
  struct Member {
    std::size_t next = 0;  // index in `order_`
    std::vector<SegmentIndex> lost;
    std::size_t undelivered = 0;
    bool gone = false;
  };
  // The members that have the sum.
  using Holders = Bitmap;

  const Collective& collective_;
  BufferPool& pool_;
  std::vector<SegmentIndex> order_;
  std::map<SegmentIndex, Holders> holders_;
  std::vector<Member> members_;
  std::map<MemberIndex, SegmentStore> sums_;  // one store for each owner
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_RELAYED_SUMS_H_
