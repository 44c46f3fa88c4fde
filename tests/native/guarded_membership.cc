// The membership of a process with several lanes.

#include "ffi/runtime/guarded_membership.h"

#include <atomic>

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

class TestGuardedMembership {
 public:
  explicit TestGuardedMembership(std::uint16_t lanes)
      : membership_(Rank(0), 3, std::chrono::seconds(1), lanes) {
    for (std::uint16_t lane = 0; lane < lanes; ++lane) {
      membership_.AddLane([this] { ++wakes_; });
    }
  }

  void Suspect(double now, std::uint16_t rank) {
    membership_.Open()->Suspect(At(now), /*lane=*/0, Rank(rank));
  }
  void Use() { membership_.Open().Use(); }
  void HandleTimeout(double now) { membership_.Open()->HandleTimeout(At(now)); }
  bool stuck() const { return membership_.facts().stuck; }
  bool asks() const { return membership_.facts().asks(); }
  bool in_use() const { return membership_.facts().in_use; }
  int wakes() const { return wakes_; }

 private:
  GuardedMembership membership_;
  std::atomic<int> wakes_ = 0;  // wakes of all lanes
};

void Bind(nb::module_& m) {
  nb::class_<TestGuardedMembership>(m, "GuardedMembership")
      .def(nb::init<std::uint16_t>())
      .def("suspect", &TestGuardedMembership::Suspect)
      .def("use", &TestGuardedMembership::Use)
      .def("handle_timeout", &TestGuardedMembership::HandleTimeout)
      .def_prop_ro("stuck", &TestGuardedMembership::stuck)
      .def_prop_ro("asks", &TestGuardedMembership::asks)
      .def_prop_ro("in_use", &TestGuardedMembership::in_use)
      .def_prop_ro("wakes", &TestGuardedMembership::wakes);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
