// The calls of the ranks of a scenario, their order, and their values. A pure function of the
// scenario, so that a contribution, or the sum of all, can be computed at any place and time.

#ifndef FFI_SIM_WORKLOAD_H_
#define FFI_SIM_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/protocol/collective/policy_traits.h"
#include "ffi/protocol/submission.h"
#include "ffi/sim/scenario.h"

namespace optireduce {

// One call as a program identifies it.
struct SimCall {
  std::size_t collective = 0;
  std::size_t index = 0;  // its index among the calls of this collective, from 0

  friend bool operator==(const SimCall&, const SimCall&) = default;
};

// Elements of a bucket: [first, end).
struct ElementRange {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
};

struct SimCollective {
  CollectiveSpec spec;       // its members are those that are present
  std::vector<Rank> absent;  // the other ranks that programs name as members
  std::vector<std::uint64_t> leaf_elements;
  std::size_t period = 1;  // a program calls it in every so many steps
  std::size_t calls = 0;   // calls of a program, without a drain

  bool lossy() const { return DropsLateData(spec); }
  bool defers() const { return RetainsLateData(spec); }
  bool HasMember(Rank rank) const;
  std::size_t MemberOf(Rank rank) const;
  // The elements of the shard of a member, of a collective with one stage.
  ElementRange ShardOf(std::size_t member) const;
  // The elements that a call gives the member.
  ElementRange ResultOf(std::size_t member) const;
  // The collective as programs name it.
  CollectiveSpec NamedSpec() const;
  std::size_t bytes() const { return spec.elements * SizeOf(spec.element_type); }
};

class Workload {
 public:
  explicit Workload(const Scenario& scenario);

  std::span<const SimCollective> collectives() const { return collectives_; }
  // The collective that `rank` submits, which differs from the others' in a scenario with a
  // mismatch.
  SimCollective CollectiveAt(std::size_t collective, Rank rank) const;
  Sequence SequenceOf(SimCall call) const;
  std::size_t CallsOf(std::size_t collective) const {
    return collectives_[collective].calls + (collectives_[collective].defers() ? 1 : 0);
  }
  // The last call of a collective that defers late data: a drain, without a contribution. After a
  // failure it may be repeated.
  bool IsDrain(const SimCollective& collective, SimCall call) const {
    return collective.defers() && call.index >= collective.calls;
  }
  // The step of a program in which it makes the call.
  std::size_t StepOf(SimCall call) const {
    const SimCollective& of = collectives_[call.collective];
    return call.index < of.calls ? call.index * of.period
                                 : scenario_.calls + (call.index - of.calls);
  }

  // The program of a member skips the call, and contributes nothing to it.
  bool Skips(const SimCollective& collective, SimCall call, std::size_t member) const;

  // The program of a rank: concurrent chains of consecutive calls, in the order in which the rank
  // starts them. With at_once= all but the first start at the end of that: one for each collective,
  // with its drain, and of the last at_once - 1 collectives with their last calls as well.
  std::vector<std::vector<SimCall>> ProgramOf(Rank rank) const;

  // Writes the contribution of one member, leaf after leaf without gaps.
  void Fill(const SimCollective& collective, SimCall call, std::size_t member,
            std::span<std::byte> bucket) const;
  // The quorum of an all_gather that drops late data; every other one waits for all.
  Quorum QuorumOf(const SimCollective& collective) const;
  // The sum over the members, added in rank order; of an all_gather the shards of all of them.
  std::vector<std::byte> Reference(const SimCollective& collective, SimCall call) const;

  // In lossy calls member m contributes weight * 2^m * Pattern(element), so that the sum identifies
  // its contributions.
  double Pattern(SimCall call, std::uint64_t element) const;
  static double WeightOf(ElementType type);

  // With deferral, each element represents some of the contributions, each as a digit of base 4:
  // the sum over all calls identifies its contributions, and those that it contains more than once.
  // The other contributions to the element are zero.
  struct Decoded {
    std::size_t member = 0;
    std::size_t index = 0;  // index of the call
    int times = 0;          // 3: three or more; one more if the member skips the call
    double value = 0;       // the value of the contribution
  };
  // The contributions in an element whose total over all calls is `total`. Empty if no
  // contributions give that total.
  std::vector<Decoded> DecodeTotal(const SimCollective& collective, std::uint64_t element,
                                   double total) const;
  // The sum of the largest values of contributions to such a collective.
  double Magnitude(const SimCollective& collective) const;
  // The total with each contribution once.
  double AllOnce(const SimCollective& collective, std::uint64_t element) const;
  // True if each contribution is in the total once.
  bool HoldsAllOnce(const SimCollective& collective, std::uint64_t element, double total) const;

 private:
  // The program of the rank makes the call.
  bool Makes(Rank rank, SimCall call) const;
  // All calls in one chain.
  std::vector<SimCall> SequentialProgramOf(Rank rank) const;
  // The first chain of that program, and those that start at its end.
  std::vector<std::vector<SimCall>> EndAtOnce(std::vector<SimCall> sequential) const;
  // The first contribution that the element represents, and their number; ordered by member, then
  // call.
  struct Window {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  Window WindowOf(const SimCollective& collective, std::uint64_t element) const;
  double SignOf(std::uint64_t element) const;
  // The contribution to a collective with deadlines.
  double Contribution(const SimCollective& collective, SimCall call, std::size_t member,
                      std::uint64_t element) const;
  // Calls `visit(element, value)` with the contribution of a member.
  template <typename Visit>
  void ForEachElement(const SimCollective& collective, SimCall call, std::size_t member,
                      ElementRange elements, Visit visit) const;

  Scenario scenario_;
  std::vector<SimCollective> collectives_;
};

// One element as a number; exact for every element type.
double LoadElement(ElementType type, const std::byte* from);
// Rounds to nearest even.
void StoreElement(ElementType type, double value, std::byte* to);

}  // namespace optireduce

#endif  // FFI_SIM_WORKLOAD_H_
