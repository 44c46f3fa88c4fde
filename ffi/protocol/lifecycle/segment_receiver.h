// Segments that arrive: contributions and results of peers, checked, decoded, and handed to their
// call, which may be opened or completed by them.

#ifndef FFI_PROTOCOL_LIFECYCLE_SEGMENT_RECEIVER_H_
#define FFI_PROTOCOL_LIFECYCLE_SEGMENT_RECEIVER_H_

#include <cstddef>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/detectors/mismatch_detector.h"
#include "ffi/protocol/lifecycle/call_lifecycle.h"
#include "ffi/protocol/session/admission.h"
#include "ffi/protocol/session/lag_monitor.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/session/transmitter.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

// The parts of an endpoint that arriving segments need; all outlive the receiver.
struct SegmentReceiverParts {
  Admission& admission;
  LagMonitor& lag;
  Transmitter& transmitter;
  MismatchDetector& mismatch;
  CallLifecycle& lifecycle;
};

class SegmentReceiver {
 public:
  SegmentReceiver(SessionState& session, const SegmentReceiverParts& parts)
      : session_(session),
        admission_(parts.admission),
        lag_(parts.lag),
        transmitter_(parts.transmitter),
        mismatch_(parts.mismatch),
        lifecycle_(parts.lifecycle) {}

  // Takes the segments of an authentic datagram. False: it cannot be taken now, and has to come
  // again.
  bool Handle(Instant now, const Header& header, std::span<const std::byte> encoded);

 private:
  bool HandleOne(Instant now, Collective& collective, MemberIndex from, const Header& header,
                 std::span<const std::byte> encoded);
  bool HandleValues(Instant now, Collective& collective, MemberIndex from, const Header& header,
                    std::span<const std::byte> payload);
  // Handles a segment of a call that is open.
  bool HandleOpen(Instant now, OpenCall& open, MemberIndex from, const Header& header,
                  std::span<const std::byte> payload);
  // Counts a segment that is not new.
  void Count(Receipt receipt, Rank from);

  SessionState& session_;
  Admission& admission_;
  LagMonitor& lag_;
  Transmitter& transmitter_;
  MismatchDetector& mismatch_;
  CallLifecycle& lifecycle_;
  std::vector<std::byte> decoded_;  // a payload that came rounded
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_LIFECYCLE_SEGMENT_RECEIVER_H_
