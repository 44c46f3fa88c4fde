// The first stage of one call, at the owner of a shard: contributions arrive, and become sums.

#ifndef FFI_PROTOCOL_CALL_REDUCE_SCATTER_STAGE_H_
#define FFI_PROTOCOL_CALL_REDUCE_SCATTER_STAGE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/bucket/reduction.h"
#include "ffi/protocol/call/call_policy.h"
#include "ffi/protocol/call/segment_codec.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class ReduceScatterStage {
 public:
  // All of them must outlive this.
  ReduceScatterStage(Collective& collective, CallPolicy& policy, SegmentCodec& codec,
                     BufferPool& pool);

  // This rank's contribution lies in `bucket`, until Detach().
  void Submit(Instant now, BucketView& bucket);
  void Detach() { reduction_.Detach(); }
  Receipt Handle(Instant now, MemberIndex from, const Header& header,
                 std::span<const std::byte> payload);

  // Data of the member is not waited for, until something of it comes: Require().
  void MakeOptional(MemberIndex absent);
  void Require(MemberIndex member);
  // Adds the segments for which nothing is waited for any longer.
  void ReduceReady();
  // No more data of the member will arrive.
  void Exclude(MemberIndex gone);

  // ---- Closing.
  // The deadline of the stage is over: CloseNext() closes a segment as its turn to be sent comes.
  // Contributions that come before that are not late.
  void BeginClosing() {
    state_ = State::kClosing;
    expired_ = true;
  }
  bool closing() const { return state_ == State::kClosing; }
  // Its deadline came before its end.
  bool expired() const { return expired_; }
  void CloseNext();
  // Makes all sums that are left.
  void Close();
  bool closed() const { return state_ == State::kClosed; }
  // All sums exist.
  bool finished() const { return reduction_.finished(); }
  // The call drains its collective, and waits for everything. False if it is too late for that.
  bool Drain();

  // ---- The sums, in the order they became ready.
  const std::vector<SegmentIndex>& sums() const { return sums_; }
  bool HasSum(SegmentIndex segment) const { return reduction_.Reduced(segment); }
  std::span<const std::byte> Sum(SegmentIndex segment) const { return reduction_.Sum(segment); }
  std::uint16_t contributors(SegmentIndex segment) const {
    return reduction_.contributions(segment);
  }
  // The sum holds data of earlier calls.
  bool HoldsDeferred(SegmentIndex segment) const {
    return holds_deferred_.Contains(segment.value() - first_);
  }
  // Keeps the sums only, once all exist.
  void Compact(BufferPool& pool) {
    if (finished()) reduction_.Compact(pool);
  }

  // ---- Contributions of a member.
  std::size_t received(MemberIndex from) const { return reduction_.received(from); }
  const Bitmap& received_bitmap(MemberIndex from) const { return reduction_.received_bitmap(from); }
  // Segments that have not come.
  std::size_t NotReceived(MemberIndex from) const { return contributed_ - received(from); }
  // A contribution is missing, and waited for.
  bool Awaits(MemberIndex from) const { return !closed() && NotReceived(from) > 0; }
  // Segments that are not in the sums, or not yet.
  std::size_t Missing(MemberIndex from) const {
    return closed() ? missed_[from.index()] : NotReceived(from);
  }
  // The bytes of contributions that are not in the sums.
  std::uint64_t MissedBytes(MemberIndex from) const {
    return collective_.layout.BytesOf(collective_.self, missed_[from.index()]);
  }
  const LastSegments& last_segments() const { return last_segments_; }

 private:
  enum class State : std::uint8_t { kOpen, kClosing, kClosed };

  void Reduce(SegmentIndex segment);
  // Members for which the contributions that have come stand too.
  std::size_t Represented() const;

  Collective& collective_;
  CallPolicy& policy_;
  SegmentCodec& codec_;
  std::uint32_t first_;     // segment of the shard
  std::uint32_t segments_;  // segments in the shard
  // The segments to which other members contribute: none without the stage, where this rank's
  // values are the sums.
  std::uint32_t contributed_;
  Reduction reduction_;
  State state_ = State::kOpen;
  bool expired_ = false;
  std::uint32_t next_to_close_ = 0;  // counted within the shard
  std::vector<SegmentIndex> sums_;
  std::vector<std::uint32_t> missed_;  // contributions of each member that are not in the sums
  std::vector<bool> absent_;           // optional members of which nothing has come
  bool incomplete_ = false;            // some sum lacks a contribution
  Bitmap holds_deferred_;              // segments within the shard
  LastSegments last_segments_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_REDUCE_SCATTER_STAGE_H_
