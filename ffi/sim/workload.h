// The calls of the ranks of a scenario, their order, and their values. A pure function of the
// scenario, so that a contribution, or the sum of all, can be computed anywhere and at any time.

#ifndef FFI_SIM_WORKLOAD_H_
#define FFI_SIM_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/protocol/submission.h"
#include "ffi/sim/scenario.h"

namespace optireduce {

// One call as a program names it.
struct SimCall {
  std::size_t collective = 0;
  std::size_t index = 0;  // of the calls of this collective, from 0

  friend bool operator==(const SimCall&, const SimCall&) = default;
};

struct SimCollective {
  CollectiveSpec spec;
  std::vector<std::uint64_t> leaf_elements;

  bool lossy() const { return spec.reduce_scatter == LatePolicy::kDrop; }
  bool defers() const { return Defers(spec); }
  bool HasMember(Rank rank) const;
  std::size_t MemberOf(Rank rank) const;
  std::size_t bytes() const { return spec.elements * SizeOf(spec.element_type); }
};

class Workload {
 public:
  explicit Workload(const Scenario& scenario);

  std::span<const SimCollective> collectives() const { return collectives_; }
  // The collective that `rank` submits: it differs from the others' in a scenario with a mismatch.
  SimCollective CollectiveAt(std::size_t collective, Rank rank) const;
  Sequence SequenceOf(SimCall call) const;
  std::size_t CallsOf(std::size_t collective) const {
    return scenario_.calls + (collectives_[collective].defers() ? 1 : 0);
  }
  // The last call of a collective that defers late data: it drains it, and adds no contribution.
  // After a failure it may be repeated.
  bool IsDrain(const SimCollective& collective, SimCall call) const {
    return collective.defers() && call.index >= scenario_.calls;
  }

  // The program of a member jumps over the call; it adds nothing to it.
  bool Skips(const SimCollective& collective, SimCall call, std::size_t member) const;

  // The program of a rank: chains that run at the same time, each one call after the other, in the
  // order in which the rank starts them.
  std::vector<std::vector<SimCall>> ProgramOf(Rank rank) const;

  // Writes the contribution of one member, leaf after leaf without gaps.
  void Fill(const SimCollective& collective, SimCall call, std::size_t member,
            std::span<std::byte> bucket) const;
  // The sum over the first `members` of them, added in rank order.
  std::vector<std::byte> Reference(const SimCollective& collective, SimCall call) const;

  // In lossy calls member m contributes weight * 2^m * Pattern(element), so that the sum tells
  // which contributions are in it.
  double Pattern(SimCall call, std::uint64_t element) const;
  static double WeightOf(ElementType type);

  // Where late data is deferred, each element shows some of the contributions, each as a digit of
  // base 4: the sum over all calls shows its contributions, and those that are in it more than
  // once. The others are zero there.
  struct Shown {
    std::size_t member = 0;
    std::size_t index = 0;  // of the call
    int times = 0;          // 3: or more; of a call that the member skips one too many
    double value = 0;       // that it is
  };
  // Of the element of which all calls gave `total`. Empty where contributions cannot give that.
  std::vector<Shown> ShownBy(const SimCollective& collective, std::uint64_t element,
                             double total) const;
  // The sum of the largest values that contributions to such a collective have.
  double Magnitude(const SimCollective& collective) const;
  // Each of these is in it once.
  bool ShowsAllOnce(const SimCollective& collective, std::uint64_t element, double total) const;

 private:
  // The first contribution that the element shows, and their number; ordered by member, then call.
  struct Window {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  Window WindowOf(const SimCollective& collective, std::uint64_t element) const;
  double SignOf(std::uint64_t element) const;
  // Of a collective with deadlines.
  double Contribution(const SimCollective& collective, SimCall call, std::size_t member,
                      std::uint64_t element) const;
  struct Elements {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };
  // Calls `visit(element, value)` with the contribution of a member.
  template <typename Visit>
  void ForEachElement(const SimCollective& collective, SimCall call, std::size_t member,
                      Elements elements, Visit visit) const;

  Scenario scenario_;
  std::vector<SimCollective> collectives_;
};

// One element as a number; exact for every element type.
double LoadElement(ElementType type, const std::byte* from);
// Rounds to nearest even.
void StoreElement(ElementType type, double value, std::byte* to);

}  // namespace optireduce

#endif  // FFI_SIM_WORKLOAD_H_
