// A collective as this rank knows it: from its own program, from a peer's announcement, or both.

#ifndef FFI_PROTOCOL_COLLECTIVE_COLLECTIVE_H_
#define FFI_PROTOCOL_COLLECTIVE_COLLECTIVE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/bucket_layout.h"
#include "ffi/protocol/collective/attendance.h"
#include "ffi/protocol/collective/deferred_data.h"
#include "ffi/protocol/collective/drain_number.h"
#include "ffi/protocol/collective/format_controller.h"
#include "ffi/protocol/collective/given_up.h"
#include "ffi/protocol/collective/others_calls.h"
#include "ffi/protocol/collective/presence.h"
#include "ffi/protocol/deadline/call_timing.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// The call that ends a collective whose members have changed, see call_gate.h. Source:
// the last number that there is; no program may use it.
inline constexpr Sequence kFinalDrain(std::numeric_limits<std::uint32_t>::max());

// Owns a part of a collective, which only a holder of a mutable collective may change.
template <typename T>
class Owned {
 public:
  T* get() { return value_.get(); }
  T* operator->() { return value_.get(); }
  const T* operator->() const { return value_.get(); }
  const T& operator*() const { return *value_; }
  explicit operator bool() const { return value_ != nullptr; }
  Owned& operator=(std::unique_ptr<T> value) {
    value_ = std::move(value);
    return *this;
  }
  void reset() { value_.reset(); }

 private:
  std::unique_ptr<T> value_;
};

struct Collective {
  Collective(CollectiveId the_id, const CollectiveSpec& the_spec, MemberIndex the_self,
             std::size_t payload_bytes_max, std::optional<Owners> owners = std::nullopt)
      : id(the_id),
        spec(the_spec),
        self(the_self),
        layout(the_spec.elements, SizeOf(the_spec.element_type),
               static_cast<std::uint16_t>(the_spec.members.size()), payload_bytes_max, owners),
        announced_at(the_spec.members.size()),
        newest_call(the_spec.members.size()),
        attendance(the_spec.members.size()) {
    for (const MemberIndex member : layout.Members()) {
      if (member != self) others.push_back(member);
    }
  }

  std::optional<MemberIndex> MemberOf(Rank rank) const { return optireduce::MemberOf(spec, rank); }
  Rank RankOf(MemberIndex member) const { return spec.members[member.index()]; }
  // The size of a call's result here: the bucket, or this rank's shard alone.
  std::uint64_t result_bytes() const {
    return HasAllGather(spec) ? layout.bytes() : layout.Shard(self).bytes;
  }
  // Adds the late results of this and its predecessors to the bucket; returns the bytes touched.
  std::uint64_t MoveLateResults(BucketView& bucket) {
    std::uint64_t bytes = deferred ? deferred->MoveLateResults(bucket) : 0;
    if (predecessor != nullptr) bytes += predecessor->MoveLateResults(bucket);
    return bytes;
  }

  CollectiveId id;
  CollectiveId bucket_id{};  // the bucket that it is, or is a part of; see BucketOf
  CollectiveSpec spec;
  MemberIndex self;
  std::vector<MemberIndex> others;  // the members but this rank, ascending
  BucketLayout layout;
  // The error if a peer has announced another collective of this identity: sums could mix.
  Status conflict;
  std::optional<Sequence> accepted;   // the highest position that this rank's program has called
  std::optional<Sequence> submitted;  // the highest of these that has begun
  // Made with the first call, where a stage has a deadline.
  Owned<CallTiming> timing;
  const CallTiming* earlier_timing = nullptr;  // timing in the session before, if it is known
  Owned<DeferredData> deferred;                // null unless late data is deferred
  FormatController format;                     // the format of calls with WireFormat::kAuto
  // Means are over the members that take part in a call: those that are absent will skip it.
  bool averages_present = false;
  std::optional<Sequence> merged;  // the highest that was over before the program had called it
  // The same collective when it had more members; it is learnt before this one.
  Collective* predecessor = nullptr;
  enum class FinalDrain : std::uint8_t {
    kNone,
    kWanted,
    kUnderWay,
    kDone,
    kVoid,  // no member that is left had called it: its data does not count
  };
  FinalDrain final_drain = FinalDrain::kNone;
  // The program of this rank makes the call.
  void RecordSubmitted(Sequence sequence) {
    submitted = sequence;
    if (presence == nullptr) return;
    place = presence->Call();
    presence->EndWait(RankOf(self));
  }
  // The program of this rank has made calls, and not the one directly before `call`.
  bool HasSkippedCallBefore(Sequence call) const {
    return submitted && submitted->value() + 1 < call.value();
  }
  // `member` has shown that its program has made the call, or skips it.
  void RecordCalled(Instant now, MemberIndex member, Sequence sequence, bool skipped = false) {
    std::optional<Sign>& newest = newest_call[member.index()];
    const bool newer = !newest || sequence > newest->sequence;
    if (!newer || sequence == kFinalDrain) return;
    newest = {.at = now, .sequence = sequence, .skipped = skipped};
    if (presence != nullptr) presence->EndWait(RankOf(member));
    Origin().drain_number.RecordCalled(RankOf(member), sequence);
    Origin().others_calls.Record(now, sequence);
  }
  // It takes part in the newest call of this rank, or in a later one; in others it is late.
  void RecordPresent(MemberIndex member, Sequence sequence) {
    if (presence == nullptr || sequence == kFinalDrain) return;
    if (submitted && sequence < *submitted) return;
    presence->RecordCall(RankOf(member), submitted == sequence ? place : presence->newest());
  }
  // The collective continues as `next`, without some of its members. Peers can have shown calls of
  // that before this rank knew it.
  void ContinueAs(Collective& next) {
    next.predecessor = this;
    Origin().others_calls.Join(next.others_calls);
    Origin().drain_number.Join(next.drain_number);
  }
  // `member`, or this rank, makes no more calls before the others come to its drain: it waits in
  // one of this collective, or of another.
  bool WaitsInDrain(Rank member) const {
    return Origin().drain_number.Waits(member) || (presence != nullptr && presence->Drains(member));
  }
  // The first of the chain of successors: the collective as the program makes it.
  const Collective& Origin() const {
    return predecessor == nullptr ? *this : predecessor->Origin();
  }
  Collective& Origin() { return predecessor == nullptr ? *this : predecessor->Origin(); }
  std::vector<MemberIndex> returned;  // they wait until this rank begins its next call
  // When something of a call was first seen, and of which.
  struct Sign {
    Instant at;
    Sequence sequence;
    bool skipped = false;  // only others have made it
  };
  // One for each member: its first announcement, and the newest call that its program has come to.
  std::vector<std::optional<Sign>> announced_at;
  std::vector<std::optional<Sign>> newest_call;
  // The calls that each member has given up, this rank included.
  std::map<MemberIndex, GivenUpCalls> given_up;
  Attendance attendance;  // unused unless late data is dropped
  // Shared by all collectives that continue without members that are late; null for others.
  Presence* presence = nullptr;
  Presence::Place place = 0;  // the place of the call `submitted`
  // Unused unless it is the origin.
  OthersCalls others_calls;
  DrainNumber drain_number;
  Owned<SegmentStore> passed;    // contributions to calls that this rank has passed, for the next
  std::uint32_t outlasting = 0;  // calls that this rank has made after a member had left
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_COLLECTIVE_COLLECTIVE_H_
