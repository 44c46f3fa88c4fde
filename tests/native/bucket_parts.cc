// The split of a bucket across lanes, and the outcome of a call from those of its parts.

#include "ffi/protocol/bucket/bucket_parts.h"

#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

// The ranges [begin, end) of the bucket's elements in the leaves of a part, after its lane and its
// elements. The leaves of the bucket are contiguous.
using Range = std::pair<std::uint64_t, std::uint64_t>;
using Part = std::tuple<std::size_t, std::uint64_t, std::vector<Range>>;

// `scattered`: the number of members of a reduce_scatter; 0: an allreduce.
std::vector<Part> CutOf(const std::string& name, const std::vector<std::uint64_t>& leaves,
                        std::size_t lanes, std::size_t cut_bytes_min, std::uint16_t scattered) {
  Submission submission;
  submission.spec.name = name;
  if (scattered > 0) submission.spec.all_gather = LatePolicy::kNoStage;
  for (std::uint16_t m = 0; m < scattered; ++m) submission.spec.members.emplace_back(m);
  for (const std::uint64_t elements : leaves) submission.spec.elements += elements;
  std::vector<float> bucket(submission.spec.elements);
  float* at = bucket.data();
  for (const std::uint64_t elements : leaves) {
    submission.leaves.push_back({.data = reinterpret_cast<std::byte*>(at), .elements = elements});
    at += elements;
  }
  std::vector<Part> parts;
  for (const BucketPart& part : CutBucket(submission, lanes, cut_bytes_min)) {
    std::vector<Range> ranges;
    for (const Leaf& leaf : part.submission.leaves) {
      const auto begin =
          static_cast<std::uint64_t>(reinterpret_cast<const float*>(leaf.data) - bucket.data());
      ranges.emplace_back(begin, begin + leaf.elements);
    }
    parts.emplace_back(part.lane, part.submission.spec.elements, std::move(ranges));
  }
  return parts;
}

// Returns for each part of a drain whether it is one.
std::vector<bool> CutDrain(std::uint64_t elements, std::size_t lanes) {
  Submission submission;
  submission.spec.elements = elements;
  submission.drain = true;
  std::vector<bool> drains;
  for (const BucketPart& part : CutBucket(submission, lanes, 1)) {
    drains.push_back(part.submission.drain);
  }
  return drains;
}

void Add(PartOutcomes& self, std::uint64_t elements, const std::string& error,
         double missing_contributions, double missing_results, double elapsed_s,
         std::uint16_t slowest, std::uint16_t live) {
  self.Add(error.empty() ? Status() : Status(StatusCode::kUnavailable, error),
           {.missing_contributions = missing_contributions,
            .missing_results = missing_results,
            .elapsed = FromSeconds(elapsed_s),
            .slowest = Rank(slowest),
            .live = live},
           elements);
}

void Bind(nb::module_& m) {
  m.def("cut_bucket", &CutOf, "name"_a, "leaves"_a, "lanes"_a, "cut_bytes_min"_a,
        "scattered"_a = 0);
  m.def("cut_drain", &CutDrain, "elements"_a, "lanes"_a);
  nb::class_<PartOutcomes>(m, "PartOutcomes")
      .def(nb::init<>())
      .def("add", &Add, "elements"_a, nb::kw_only(), "error"_a = "",
           "missing_contributions"_a = 0.0, "missing_results"_a = 0.0, "elapsed_s"_a = 0.0,
           "slowest"_a = 0, "live"_a = 1)
      .def_prop_ro("error", [](const PartOutcomes& self) { return self.status().message(); })
      .def_prop_ro("missing_contributions",
                   [](const PartOutcomes& self) { return self.stats().missing_contributions; })
      .def_prop_ro("missing_results",
                   [](const PartOutcomes& self) { return self.stats().missing_results; })
      .def_prop_ro("elapsed_s",
                   [](const PartOutcomes& self) { return ToSeconds(self.stats().elapsed); })
      .def_prop_ro("slowest", [](const PartOutcomes& self) { return self.stats().slowest.value(); })
      .def_prop_ro("live", [](const PartOutcomes& self) { return self.stats().live; });
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
