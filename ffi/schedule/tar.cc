#include "ffi/schedule/tar.h"

#include "ffi/base/check.h"

namespace optireduce {

std::vector<MemberIndex> TarSendOrder(std::uint16_t world_size, MemberIndex member) {
  OR_CHECK(member.value() < world_size);
  std::vector<MemberIndex> order;
  for (std::uint32_t step = 1; step < world_size; ++step) {
    const std::uint32_t target = (member.value() + world_size - step) % world_size;
    order.emplace_back(static_cast<std::uint16_t>(target));
  }
  return order;
}

}  // namespace optireduce
