// The second stage of one call, at every member: sums arrive, and become the result.
//
// The result is built in place. A sum is written over the contribution that it replaces, which is
// safe since a sum exists only after its owner has closed the segment: the contribution is either
// in the sum or late, and CallSender retains it first where it may still be needed.

#ifndef FFI_PROTOCOL_CALL_ALL_GATHER_STAGE_H_
#define FFI_PROTOCOL_CALL_ALL_GATHER_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/call/call_policy.h"
#include "ffi/protocol/call/call_sender.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class AllGatherStage {
 public:
  // All of them must outlive this. `bucket` is empty until the program has called.
  AllGatherStage(Collective& collective, CallPolicy& policy, CallSender& sender, BucketView& bucket,
                 BufferPool& pool);

  // The header and the size of a result fit the call, and the shard of `from`, or of the owner that
  // `from` relays.
  bool Fits(MemberIndex from, const Header& header, std::size_t bytes) const;
  Receipt Handle(Instant now, MemberIndex from, const Header& header,
                 std::span<const std::byte> payload);
  // A sum of this rank's shard.
  void Add(SegmentIndex segment, std::span<const std::byte> sum, bool holds_deferred);
  // The program has called: early results move to its bucket.
  void Submit(Instant now, const Quorum& quorum);
  // Bytes of memory that a result which comes now would take.
  std::size_t EarlyBytes() const;

  // Results of the member are not waited for, until something of it comes: Require().
  void MakeOptional(MemberIndex absent);
  void Require(MemberIndex member);
  // The shard of the member stays as it is.
  void Exclude(MemberIndex gone);

  // ---- The end.
  // The stage ends with the results that are there.
  void Close() { closed_ = true; }
  bool closed() const { return closed_; }
  bool full() const { return received_.full(); }
  bool ended() const { return full() || closed(); }
  // The call has a quorum, which needs none of these members (by member).
  bool SparesAll(const std::vector<bool>& members) const;
  // Every result is here but optional ones, or those of a quorum.
  bool complete() const { return received_.count() + optional_ >= received_.size() || HasQuorum(); }
  // The call is over: results that come now are late.
  void End() { over_ = true; }
  // Makes the results zero that are not there.
  void ZeroMissing();
  // Defers all results, of a call that the program has not made.
  void DeferAll(const ReduceScatterStage& sums);

  Bitmap ReceivedOf(MemberIndex owner) const;
  std::uint32_t NotReceived(MemberIndex owner) const { return missing_of_[owner.index()]; }
  // Bytes of the result, and of late results that join it, that hold data of earlier calls.
  std::uint64_t DeferredBytes() const;
  const LastSegments& last_segments() const { return last_segments_; }

 private:
  std::span<const std::byte> Early(SegmentIndex segment) const {
    const ByteRange range = collective_.layout.Segment(segment);
    return {early_.data() + range.offset, range.bytes};
  }
  bool called() const { return bucket_.bytes() > 0; }
  bool HasQuorum() const;
  void Insert(MemberIndex owner, SegmentIndex segment);
  // Results that come now are late.
  bool TakesNoMore() const { return over_ || (closed_ && policy_.LosesLate()); }

  Collective& collective_;
  CallPolicy& policy_;
  CallSender& sender_;
  BucketView& bucket_;
  BufferPool& pool_;
  Bitmap received_;                        // segments of the bucket
  std::vector<std::uint32_t> missing_of_;  // segments, by member
  Bitmap holds_deferred_;                  // segments of the bucket
  Buffer early_;                           // the bucket, of results that came before the local call
  Quorum quorum_;
  std::vector<bool> is_optional_;  // one for each member
  std::size_t optional_ = 0;       // segments
  bool closed_ = false;
  bool over_ = false;
  LastSegments last_segments_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_ALL_GATHER_STAGE_H_
