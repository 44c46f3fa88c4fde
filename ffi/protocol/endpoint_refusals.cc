// Data for calls that the local program has not made: what of it is taken, and what is refused.

#include <utility>

#include "ffi/protocol/endpoint_impl.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
OpenCall* Endpoint::Impl::Admit(Instant now, const Header& header) {
  if (auto* const open = calls_.Find(header.call); open != nullptr) return open;
  // Ahead of the local program: bounded in calls and in memory.
  Collective& collective = *directory_.Find(header.call.collective);
  const bool suspended = IsSuspended(header);
  const auto [decision, oldest] = admission_.Decide(collective, suspended);
  if (decision == Admission::Decision::kFold) {
    calls_.At(oldest).exchange.Fold();
    NoteFolded(oldest);
  }
  if (decision == Admission::Decision::kRefuse || !admission_.HasRoomFor(collective))
    return nullptr;
  return &calls_.Open(now, collective, header.call.sequence,
                      Defers(collective.spec) && (header.flags & kFlagDrain) != 0);
}

}  // namespace optireduce
