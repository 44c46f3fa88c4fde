// The collectives that a rank knows.

#include "ffi/protocol/collective/directory.h"

#include "ffi/protocol/options.h"
#include "ffi/protocol/wire/wire.h"
#include "tests/native/binding.h"
#include "tests/native/collective.h"

namespace optireduce::testing {
namespace OR_FILE {

using Known = optireduce::Collective;

EndpointOptions OptionsOf(std::uint16_t rank) {
  EndpointOptions options;
  options.rank = Rank(rank);
  options.world_size = 8;
  return options;
}

class TestDirectory {
 public:
  explicit TestDirectory(std::uint16_t rank) : directory_(OptionsOf(rank)) {}
  TestDirectory(const TestDirectory&) = delete;

  // Returns the identity.
  std::uint32_t Learn(const Collective& collective) {
    return Unwrap(directory_.FindOrAdd(collective.ToSpec()))->id.value();
  }
  // The description of the collective that is known under the identity.
  std::optional<std::string> Find(std::uint32_t id) const {
    const Known* const known = directory_.Find(CollectiveId(id));
    return known == nullptr ? std::nullopt : std::optional(known->spec.description);
  }
  std::vector<std::uint32_t> Named(const std::string& name) const {
    std::vector<std::uint32_t> ids;
    for (const Known* known : directory_.Named(name)) ids.push_back(known->id.value());
    return ids;
  }
  void Announce(std::uint32_t id, std::uint16_t member, double at) {
    Known& known = *directory_.Find(CollectiveId(id));
    known.announced_at[known.MemberOf(Rank(member))->index()] = {.at = At(at), .sequence = {}};
  }
  void Submit(std::uint32_t id) { directory_.Find(CollectiveId(id))->submitted = Sequence(0); }
  std::optional<std::uint32_t> AnnouncedOnly(std::uint16_t member, double limit) const {
    const Known* const known = directory_.FindAnnouncedOnly(Rank(member), At(limit));
    return known == nullptr ? std::nullopt : std::optional(known->id.value());
  }
  std::size_t size() const { return directory_.size(); }

 private:
  Directory directory_;
};

void Bind(nb::module_& m) {
  nb::class_<TestDirectory>(m, "Directory")
      .def(nb::init<std::uint16_t>(), "rank"_a)
      .def("learn", &TestDirectory::Learn)
      .def("find", &TestDirectory::Find)
      .def("named", &TestDirectory::Named)
      .def("announce", &TestDirectory::Announce)
      .def("submit", &TestDirectory::Submit)
      .def("announced_only", &TestDirectory::AnnouncedOnly)
      .def_prop_ro("size", &TestDirectory::size);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
