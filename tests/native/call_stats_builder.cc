// The statistics of one call.

#include "ffi/protocol/call/call_stats_builder.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

CollectiveSpec SpecOf(std::uint16_t members, std::uint64_t elements) {
  CollectiveSpec spec;
  spec.elements = elements;
  // Ranks 10, 11 and so on.
  for (std::uint16_t m = 0; m < members; ++m) spec.members.emplace_back(std::uint16_t(10 + m));
  return spec;
}

// The statistics of a call of member 0.
class TestCallStatsBuilder {
 public:
  TestCallStatsBuilder(std::uint16_t members, std::uint64_t elements)
      : collective_(CollectiveId(1), SpecOf(members, elements), MemberIndex(0), sizeof(float)),
        builder_(collective_) {}
  TestCallStatsBuilder(const TestCallStatsBuilder&) = delete;

  void RecordArrival(double now, std::uint16_t from) {
    builder_.RecordArrival(At(now), MemberIndex(from));
  }
  void RecordResult(std::uint16_t from, std::uint64_t bytes, std::uint16_t contributors) {
    builder_.RecordResult(MemberIndex(from), bytes, contributors);
  }
  std::uint64_t missing_bytes() const { return builder_.missing_bytes(); }
  // (rank, seconds behind the others, absent ranks); `missing`: segments by member.
  std::tuple<int, double, std::vector<int>> Slowest(double submitted, double now,
                                                    const std::vector<std::size_t>& missing) {
    builder_.FindSlowest(At(submitted), At(now),
                         [&](MemberIndex member) { return missing[member.index()]; });
    std::vector<int> absent;
    for (const Rank rank : builder_.stats.absent) absent.push_back(rank.value());
    return {builder_.stats.slowest.value(), ToSeconds(builder_.stats.behind), absent};
  }
  // (results, contributions)
  std::tuple<double, double> Missing() {
    builder_.FindMissing();
    return {builder_.stats.missing_results, builder_.stats.missing_contributions};
  }

 private:
  optireduce::Collective collective_;
  CallStatsBuilder builder_;
};

void Bind(nb::module_& m) {
  nb::class_<TestCallStatsBuilder>(m, "CallStatsBuilder")
      .def(nb::init<std::uint16_t, std::uint64_t>(), nb::arg("members"), nb::arg("elements"))
      .def("note_arrival", &TestCallStatsBuilder::RecordArrival)
      .def("note_result", &TestCallStatsBuilder::RecordResult)
      .def("slowest", &TestCallStatsBuilder::Slowest)
      .def("missing", &TestCallStatsBuilder::Missing)
      .def_prop_ro("missing_bytes", &TestCallStatsBuilder::missing_bytes);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
