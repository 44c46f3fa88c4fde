
#include "ffi/schedule/tar.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

std::vector<std::uint16_t> SendOrder(std::uint16_t world_size, std::uint16_t member) {
  std::vector<std::uint16_t> order;
  for (const MemberIndex peer : TarSendOrder(world_size, MemberIndex(member))) {
    order.push_back(peer.value());
  }
  return order;
}

void Bind(nb::module_& m) { m.def("tar_send_order", &SendOrder, "world_size"_a, "member"_a); }

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
