#include "ffi/protocol/peers/peer.h"

#include <string>

#include "ffi/protocol/wire/wire.h"

namespace optireduce {

Result<Key> DirectionKey(const EndpointOptions& options, Rank from, Rank to) {
  const bool encrypts = options.protection == Protection::kEncrypt;
  return DeriveKey(
      options.secret,
      "jax_optireduce " + std::to_string(kWireVersion) + (encrypts ? " encrypted" : "") +
          " session " + std::to_string(options.session) + " lane " + std::to_string(options.lane) +
          " from " + std::to_string(from.value()) + " to " + std::to_string(to.value()));
}

Result<Sealer> DirectionSealer(const EndpointOptions& options, Rank from, Rank to) {
  if (options.protection == Protection::kNone) return Sealer::Create({}, options.protection);
  Result<Key> key = DirectionKey(options, from, to);
  if (!key.ok()) return key.status();
  return Sealer::Create(key.value(), options.protection);
}

}  // namespace optireduce
