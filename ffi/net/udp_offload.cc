#include "ffi/net/udp_offload.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/net/clock.h"
#include "ffi/net/udp_port.h"

namespace optireduce {
namespace {

// Chosen: two datagrams make a batch; the size fits every network.
constexpr std::size_t kBatch = 2;
constexpr std::size_t kDatagramBytes = 256;
// Chosen: a thousand times the time on loopback, for a busy host.
constexpr Duration kPatience = std::chrono::seconds(1);

// True when a whole batch sent by `from`, whose peer 0 is `to`, arrived.
bool BatchArrives(UdpPort& from, UdpPort& to) {
  const std::array<std::byte, kBatch * kDatagramBytes> bytes{};
  const std::span<const std::byte> batch = bytes;
  if (!from.Send(Rank(0), {&batch, 1}, kDatagramBytes)) return false;
  const Instant end = ClockNow() + kPatience;
  std::size_t arrived = 0;
  while (arrived < kBatch && ClockNow() < end) {
    arrived += to.Receive([](std::span<const std::byte>) {});
    if (arrived < kBatch) to.Wait(end);
  }
  return arrived == kBatch;
}

Result<UdpFeatures> ProbeUdpAt(const std::string& address, UdpPortOptions options) {
  options.bind_address = address;
  Result<std::unique_ptr<UdpPort>> receiver = UdpPort::Create(options);
  if (!receiver.ok()) return receiver.status();
  Result<std::unique_ptr<UdpPort>> sender = UdpPort::Create(options);
  if (!sender.ok()) return sender.status();
  UdpPort& from = *sender.value();
  UdpPort& to = *receiver.value();
  const PeerAddress peer{.address = address, .port = to.local_port()};
  if (Status status = from.SetPeers({peer}, kDatagramBytes); !status.ok()) return status;
  Result<std::size_t> mtu = UdpPort::path_mtu_bytes(address);
  if (!mtu.ok()) return mtu.status();
  if (!BatchArrives(from, to)) {
    return Status(StatusCode::kUnavailable,
                  "UDP datagrams sent to " + address +
                      " by this process did not come back within a second; look for a firewall "
                      "rule that drops UDP on the loopback interface.");
  }
  return UdpFeatures{.gso = from.segmentation_offload(),
                     .gro = to.receive_offload(),
                     .receive_buffer_bytes = to.granted_receive_buffer_bytes(),
                     .send_buffer_bytes = from.granted_send_buffer_bytes(),
                     .loopback_mtu_bytes = mtu.value()};
}

}  // namespace

Result<UdpFeatures> ProbeUdp(const UdpPortOptions& options) {
  Result<UdpFeatures> features = ProbeUdpAt("127.0.0.1", options);
  if (features.ok()) return features;
  // A host may have IPv6 only.
  Result<UdpFeatures> features_v6 = ProbeUdpAt("::1", options);
  return features_v6.ok() ? features_v6 : features;
}

}  // namespace optireduce
