// Admission of data for calls that the program has not made yet: data is accepted or refused.
// Calls ahead of the program are limited in number and in memory.

#ifndef FFI_PROTOCOL_SESSION_ADMISSION_H_
#define FFI_PROTOCOL_SESSION_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/bucket/reduction.h"
#include "ffi/protocol/collective/policy_traits.h"
#include "ffi/protocol/peers/refusals.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class Admission {
 public:
  // `session` must outlive this.
  explicit Admission(SessionState& session) : session_(session) {}

  // The program makes no more calls.
  void Leave() { leaving_ = true; }
  // The local program has made the call, or a later one, and nothing of it is open.
  bool IsOver(const Collective& collective, Sequence sequence) const;
  // The program never makes the call, and peers need not wait for that.
  bool IsAbandoned(const Collective& collective) const {
    return collective.final_drain == Collective::FinalDrain::kVoid ||
           (leaving_ && RetainsLateData(collective.spec));
  }
  // There is memory for data that the program has not asked for.
  bool HasRoom(std::size_t bytes) const {
    return bytes == 0 || session_.pool.used_bytes() + bytes <= session_.options.early_bytes_max;
  }
  // There is memory for the contributions to one more call.
  bool HasRoomFor(const Collective& collective) const {
    return HasRoom(Reduction::StagingBytes(collective.layout, collective.self,
                                           HasReduceScatter(collective.spec)));
  }
  enum class Decision : std::uint8_t { kOpen, kMerge, kRefuse };
  struct Answer {
    Decision decision;
    CallId oldest{};  // the call to merge first, if the decision is kMerge
  };
  // May one more call be opened for a peer's data? `suspended`: the peer does not wait for this
  // rank.
  Answer Decide(const Collective& collective, bool suspended) const;

  // Counts the datagram, and lets its sender know.
  void Refuse(Instant now, const Header& header);
  // Something has happened that may lift a refusal.
  void RecordChange() { changed_ = true; }
  // Tells the peers that were refused data that is accepted now.
  void Lift(Instant now);
  void Forget(Rank gone) { refusals_.Forget(gone); }
  const Refusals& refusals() const { return refusals_; }

 private:
  bool Takes(CallId call, bool suspended) const;

  SessionState& session_;
  Refusals refusals_;
  bool leaving_ = false;
  bool changed_ = false;
  std::size_t used_bytes_ = 0;  // bytes that the pool had in use at the last Lift()
};

// The sender of the datagram does not wait for this rank.
inline bool IsSuspended(const Header& header) { return (header.flags & kFlagSuspended) != 0; }

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_ADMISSION_H_
