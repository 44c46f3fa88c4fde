// The data of a collective between its calls, where late data is deferred: data that came after its
// stage had closed, and data that peers do not have yet. It makes the sum over all calls right,
// however much was late.
//
//   late contributions  came to this rank's shard after it was summed; they join its next sum
//   late results        came after the call had ended; they join the result of the next call
//   deferred sends      the data of a call for a peer for which no call can begin (SendWindow): it
//                       joins the data of the next call that begins for that peer
//   errors              the rounding errors of data in a wire format: they join the
//                       next contribution, or sum, that is sent of the segment
//
// A deferred send was never sent. Data that was sent is only ever sent again as it was, under the
// same identity.

#ifndef FFI_PROTOCOL_COLLECTIVE_DEFERRED_DATA_H_
#define FFI_PROTOCOL_COLLECTIVE_DEFERRED_DATA_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/codec/element_type.h"
#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/bucket/buffer_pool.h"
#include "ffi/protocol/bucket/segment_store.h"
#include "ffi/protocol/collective/call_window.h"
#include "ffi/protocol/deadline/call_timing.h"

namespace optireduce {

class DeferredData {
 public:
  // `layout` and `pool` must outlive this. With `goes_on`, peers that fall behind are never waited
  // for.
  DeferredData(const BucketLayout& layout, MemberIndex self, ElementType element_type,
               std::uint32_t max_lag, bool goes_on, BufferPool& pool);

  SegmentStore& late_contributions() { return late_contributions_; }
  const SegmentStore& late_contributions() const { return late_contributions_; }
  SegmentStore& late_results() { return late_results_; }
  // Rounding errors: of sums in this rank's shard, of contributions in the others.
  SegmentStore& errors() { return errors_; }
  const SegmentStore& errors() const { return errors_; }
  // Adds the late results to the bucket; returns the bytes of the segments that it touched.
  std::uint64_t MoveLateResults(BucketView& bucket);

  // The newest call is over, and has missed so many bytes.
  void RecordMissed(std::uint64_t bytes) { missed_bytes_ = bytes; }
  // Bytes that no call has had yet: late or missing data, and deferred sends.
  std::uint64_t LateBytes() const;

  // Makes deferred sends of a contribution. The bucket is zero then.
  void DeferAll(BucketView& bucket);

  // ---- Data for a peer.
  struct Sending {
    SendWindow window;
    SegmentStore deferred_sends;
  };
  Sending& sending(Stage stage, MemberIndex to) { return peers_[to.index()].sending[Index(stage)]; }
  // The deferred sends, null if there are none; none are left.
  std::unique_ptr<SegmentStore> PopDeferredSends(Stage stage, MemberIndex to);
  // The peer is gone: only contributions that it was never sent are retained.
  void DropPeer(MemberIndex peer);
  // Adds the deferred contributions to `to`, and their errors, to the bucket instead; returns the
  // bytes of these.
  std::uint64_t MoveDeferredSends(MemberIndex to, BucketView& bucket);

  // ---- Peers that are behind.
  // The peer lacks data that is more than max_lag calls older than `call`: the call must not end
  // yet, unless the peer is suspended.
  bool Lags(MemberIndex peer, Sequence call) const {
    return !suspended(peer) && Lags(peers_[peer.index()], call);
  }
  // Some peer does.
  bool Lags(Sequence call) const;
  // From now on the peer is not waited for, until it has caught up.
  void Suspend(MemberIndex peer) { peers_[peer.index()].suspended = true; }
  // All for which Lags() is true.
  void SuspendLagging(Sequence call);
  void ResumeCaughtUp(Sequence call);
  // No peer is waited for.
  bool goes_on() const { return goes_on_; }
  bool suspended(MemberIndex peer) const { return goes_on_ || peers_[peer.index()].suspended; }

  // ---- Data of a peer.
  // When one of the newest calls was opened here.
  void RecordOpening(Sequence call, Instant at);
  std::optional<Instant> OpeningOf(Sequence call) const;
  CallHistory& history(Stage stage, MemberIndex from) {
    return peers_[from.index()].history[Index(stage)];
  }
  // A call is over here; `complete`: all its results of `owner` had come.
  void RecordResults(MemberIndex owner, Sequence call, bool complete);
  // The number of sequences before `call` whose results of `owner` are complete.
  std::uint16_t CompleteBefore(MemberIndex owner, Sequence call) const;

 private:
  struct Peer {
    std::vector<Sending> sending;      // one for each stage
    std::vector<CallHistory> history;  // one for each stage
    bool suspended = false;
    // The newest call that ended without some of its results, and the first complete one after it.
    std::optional<Sequence> incomplete_last;
    std::optional<Sequence> complete_since;
  };
  bool Lags(const Peer& peer, Sequence call) const;

  const BucketLayout& layout_;
  MemberIndex self_;
  bool goes_on_;
  SegmentStore late_contributions_;
  SegmentStore late_results_;
  SegmentStore errors_;
  std::uint64_t missed_bytes_ = 0;  // missed bytes of the newest call
  std::vector<Peer> peers_;         // one for each member
  std::vector<std::byte> scratch_;
  // Chosen: data of a call that is older than that many tells nothing about deadlines.
  static constexpr std::size_t kOpenings = 16;
  std::array<std::pair<Sequence, Instant>, kOpenings> openings_{};
  std::size_t opened_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_DEFERRED_DATA_H_
