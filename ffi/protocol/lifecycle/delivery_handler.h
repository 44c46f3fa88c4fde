// The outcomes of datagrams of this rank (delivered, lost, refused), and their consequences:
// retransmissions, and calls that go on.

#ifndef FFI_PROTOCOL_LIFECYCLE_DELIVERY_HANDLER_H_
#define FFI_PROTOCOL_LIFECYCLE_DELIVERY_HANDLER_H_

#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/call/outbox.h"
#include "ffi/protocol/lifecycle/call_lifecycle.h"
#include "ffi/protocol/path/flow.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/session/transmitter.h"

namespace optireduce {

class DeliveryHandler {
 public:
  // All must outlive this.
  DeliveryHandler(SessionState& session, Transmitter& transmitter, CallLifecycle& lifecycle)
      : session_(session), transmitter_(transmitter), lifecycle_(lifecycle) {}

  // The outcomes of datagrams to `to`.
  void Handle(Instant now, Rank to, const std::vector<Delivery>& deliveries);

 private:
  // The outcome of a datagram with segments. Appends to `advanced` the collectives whose later
  // calls may go on.
  void HandleOne(Instant now, Rank to, const Delivery& delivery,
                 std::vector<CollectiveId>& advanced);
  // A segment was lost, or `refused`.
  void HandleLoss(Rank to, OpenCall& open, MemberIndex member, const Outbox::Item& item,
                  bool refused);

  SessionState& session_;
  Transmitter& transmitter_;
  CallLifecycle& lifecycle_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_LIFECYCLE_DELIVERY_HANDLER_H_
