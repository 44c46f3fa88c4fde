// A collective as tests describe it, of float32 elements, and with the names of modes.

#ifndef TESTS_NATIVE_COLLECTIVE_H_
#define TESTS_NATIVE_COLLECTIVE_H_

#include "ffi/codec/wire_format.h"
#include "ffi/protocol/submission.h"
#include "tests/native/binding.h"

namespace optireduce::testing {

inline WireFormat WireFormatOf(const std::string& name) {
  for (std::uint8_t i = 0; i < kWireFormats; ++i) {
    if (NameOf(static_cast<WireFormat>(i)) == name) return static_cast<WireFormat>(i);
  }
  throw nanobind::value_error(("no wire format is called " + name).c_str());
}

struct Collective {
  std::string name;
  std::string mode;
  std::vector<int> members;
  std::uint64_t elements = 0;
  std::string description;
  std::uint64_t fingerprint = 1;
  double deadline_s = 0.1;  // deadline of both stages together
  std::string wire_format;
  std::string operation = "allreduce";  // "allreduce", "reduce_scatter" or "all_gather"

  CollectiveSpec ToSpec() const {
    CollectiveSpec spec;
    spec.name = name;
    spec.description = description;
    spec.fingerprint = fingerprint;
    spec.elements = elements;
    spec.wire_format = WireFormatOf(wire_format);
    if (mode == "lossy") {
      spec.reduce_scatter = spec.all_gather = LatePolicy::kDrop;
    } else if (mode == "bounded") {
      spec.reduce_scatter = spec.all_gather = LatePolicy::kDefer;
    } else if (mode == "agreed") {
      spec.reduce_scatter = LatePolicy::kDefer;
    } else if (mode != "exact") {
      throw nanobind::value_error(("no mode is called " + mode).c_str());
    }
    spec.reduce_scatter_deadline = spec.all_gather_deadline = FromSeconds(deadline_s / 2);
    if (operation == "reduce_scatter") {
      spec.all_gather = LatePolicy::kNoStage;
      spec.all_gather_deadline = {};
    }
    if (operation == "all_gather") {
      spec.reduce_scatter = LatePolicy::kNoStage;
      spec.reduce_scatter_deadline = {};
    }
    for (const int member : members) spec.members.emplace_back(static_cast<std::uint16_t>(member));
    return spec;
  }
  static Collective Of(const CollectiveSpec& spec) {
    Collective collective{
        .name = spec.name,
        .mode = std::string(ModeOf(spec)),
        .members = {},
        .elements = spec.elements,
        .description = spec.description,
        .fingerprint = spec.fingerprint,
        .deadline_s = ToSeconds(spec.reduce_scatter_deadline + spec.all_gather_deadline),
        .wire_format = std::string(NameOf(spec.wire_format)),
        .operation = !HasAllGather(spec)       ? "reduce_scatter"
                     : !HasReduceScatter(spec) ? "all_gather"
                                               : "allreduce"};
    for (const Rank member : spec.members) collective.members.push_back(member.value());
    return collective;
  }
  friend bool operator==(const Collective&, const Collective&) = default;
};

}  // namespace optireduce::testing

#endif  // TESTS_NATIVE_COLLECTIVE_H_
