// The data that one call still has for one peer: contributions to the peer's shard, and sums of
// this rank's shard. Indices only; the bytes are read when a datagram is made.

#ifndef FFI_PROTOCOL_CALL_OUTBOX_H_
#define FFI_PROTOCOL_CALL_OUTBOX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/bitmap.h"
#include "ffi/base/ids.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class Outbox {
 public:
  // Shards as [first segment, count). Contributions exist only once the program has called.
  Outbox(SegmentIndex peer_shard, std::uint32_t peer_segments, SegmentIndex own_shard,
         std::uint32_t own_segments)
      : peer_shard_(peer_shard.value()),
        peer_segments_(peer_segments),
        own_shard_(own_shard.value()),
        next_contribution_(peer_segments),
        delivered_(own_segments) {}

  struct Item {
    DatagramKind kind;
    SegmentIndex segment;
    bool retransmission = false;  // it was sent before
  };

  // The next to send, in this order: retransmissions, because the peer waits for them already; new
  // contributions (if `contribute`: it is the peer's turn); new sums (`sums` lists them as they
  // became ready). A rank that sent its sums first would keep those of the others waiting.
  std::optional<Item> Next(std::span<const SegmentIndex> sums, bool contribute);
  // The `after`-th item after `item`, which Next has returned, is the `after`-th segment after it.
  bool Follows(const Item& item, std::uint32_t after, std::span<const SegmentIndex> sums) const {
    if (item.retransmission) return false;
    if (item.kind == DatagramKind::kContribution) {
      return next_contribution_ + after < peer_segments_;
    }
    return next_sum_ + after < sums.size() &&
           sums[next_sum_ + after].value() == item.segment.value() + after;
  }
  // Takes the item that Next returned.
  void Pop(const Item& item);

  void Retransmit(const Item& item) { Retransmissions(item.kind).push_back(item.segment); }
  // The peer has this sum.
  void Deliver(SegmentIndex sum) { delivered_.Insert(sum.value() - own_shard_); }
  bool Delivered() const { return delivered_.full(); }
  bool PeerHas(SegmentIndex sum) const { return delivered_.Contains(sum.value() - own_shard_); }
  void DeliverAll();
  std::size_t undelivered() const { return delivered_.size() - delivered_.count(); }

  bool stalled() const { return stalled_; }
  void SetStalled(bool stalled) { stalled_ = stalled; }

  void OfferContributions() { next_contribution_ = 0; }
  // Some contributions were not sent yet.
  bool contributing() const { return next_contribution_ < peer_segments_; }
  void AbandonContributions();

  // The segments of one kind that are still to be sent for the first time.
  std::uint32_t Remaining(DatagramKind kind) const {
    // The peer may have sums that this rank has never sent to it: from a relay.
    const std::size_t sums = std::min(delivered_.size() - next_sum_, undelivered());
    return kind == DatagramKind::kResult ? static_cast<std::uint32_t>(sums)
                                         : peer_segments_ - next_contribution_;
  }

 private:
  std::vector<SegmentIndex>& Retransmissions(DatagramKind kind) {
    return kind == DatagramKind::kResult ? sum_retransmissions_ : contribution_retransmissions_;
  }

  std::uint32_t peer_shard_;
  std::uint32_t peer_segments_;
  std::uint32_t own_shard_;
  std::uint32_t next_contribution_;
  std::uint32_t next_sum_ = 0;
  bool stalled_ = false;
  std::vector<SegmentIndex> contribution_retransmissions_;
  std::vector<SegmentIndex> sum_retransmissions_;
  Bitmap delivered_;  // sums that the peer has
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_OUTBOX_H_
