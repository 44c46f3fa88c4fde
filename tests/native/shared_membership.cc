// The membership that the endpoints of a rank share.

#include "ffi/protocol/membership/shared_membership.h"

#include <nanobind/nanobind.h>

#include <cstdint>

#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

// Counts how often it is opened, and how often at a time.
class TestSharedMembership final : public SharedMembership {
 public:
  explicit TestSharedMembership(std::uint16_t ranks)
      : SharedMembership(Rank(0), ranks, std::chrono::seconds(1), /*lanes=*/2) {}

  void Use() { Open().Use(); }
  void Suspect(double now, std::uint16_t lane, std::uint16_t rank) {
    Open()->Suspect(At(now), lane, Rank(rank));
  }
  // A call of bucket 1 begins on a lane, under the number. Returns the calls that it skips.
  std::uint32_t Skip(std::uint32_t position, std::uint32_t number) {
    return Open().skipped().Begin(CollectiveId(1), Sequence(position), Sequence(number));
  }
  std::uint32_t Skipped() { return Open().skipped().Of(CollectiveId(1)); }
  int opened() const { return opened_; }
  bool open() const { return open_; }

 private:
  void Lock() override {
    ++opened_;
    open_ = true;
  }
  void Unlock() override { open_ = false; }

  int opened_ = 0;
  bool open_ = false;
};

void Bind(nb::module_& m) {
  nb::class_<TestSharedMembership>(m, "SharedMembership")
      .def(nb::init<std::uint16_t>(), nb::arg("ranks"))
      .def("use", &TestSharedMembership::Use)
      .def("suspect", &TestSharedMembership::Suspect)
      .def("skip", &TestSharedMembership::Skip)
      .def("skipped", &TestSharedMembership::Skipped)
      .def_prop_ro("opened", &TestSharedMembership::opened)
      .def_prop_ro("open", &TestSharedMembership::open)
      .def_prop_ro("in_use", [](const TestSharedMembership& self) { return self.facts().in_use; })
      .def_prop_ro("asks", [](const TestSharedMembership& self) { return self.facts().asks(); })
      .def_prop_ro("changes",
                   [](const TestSharedMembership& self) { return self.facts().changes; });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
