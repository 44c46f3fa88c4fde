// The invariants of removals: the remaining ranks, and the data that only removed ranks may lose.

#ifndef FFI_SIM_REMOVAL_CHECKER_H_
#define FFI_SIM_REMOVAL_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "ffi/sim/bounds.h"
#include "ffi/sim/result_checker.h"
#include "ffi/sim/run_log.h"

namespace optireduce {

class RemovalChecker {
 public:
  RemovalChecker(RunLog& log, const Bounds& bounds, const ResultChecker& results)
      : log_(log), bounds_(bounds), results_(results) {}

  // A rank goes on with these.
  void RecordView(Instant now, Rank rank, std::vector<Rank> view);
  // The remaining sums, and the numbers of members of calls, at the end.
  void Finish(Instant now);

 private:
  // A removed rank, and the number of members of the collective when it owned an element.
  struct GoneOwner {
    Rank rank;
    std::size_t members = 0;
    std::uint16_t lane = 0;  // the lane that carries the element
  };
  using GoneOwners = std::vector<GoneOwner>;
  // The number of live members of a call, and the first rank that reported it.
  struct Live {
    Rank rank;
    std::uint16_t members = 0;
  };

  // It may be removed, and a peer has not heard it for peer_timeout.
  bool WasSilent(Instant now, Rank rank) const;
  bool WasSilentOn(Instant now, Rank rank, std::size_t lane) const;
  void CheckCollective(Instant now, std::size_t collective);
  void CheckLive(Instant now, std::size_t collective);
  void CheckLiveOf(Instant now, const SimCallRecord& record);
  // "call 3 of '...' counts ".
  std::string Text(Sequence number, std::size_t collective) const;
  // The removed owners of each element.
  std::vector<GoneOwners> GoneOwnersOf(const SimCollective& collective) const;
  // Adds the removed owners in a view.
  void AddGoneOwners(const SimCollective& collective, const std::vector<Rank>& view,
                     std::vector<GoneOwners>& gone) const;
  // The members of a call that had so many.
  std::vector<Rank> MembersOf(std::size_t collective, std::size_t members) const;
  // The calls of a rank that ended with a result, in their order.
  std::vector<const SimCallRecord*> EndedCalls(Rank rank, std::size_t collective) const;
  // Data of `rank` for a removed owner may have begun in this call: then its place is unknown.
  bool MayBeLost(Rank rank, SimCall call, const GoneOwners& owners) const;
  // Checks the losses over all calls of a rank that has drained them; `owners` has one entry for
  // each element.
  void CheckLosses(Instant now, std::size_t collective, Rank rank,
                   const std::vector<GoneOwners>& owners);
  // Every contribution to an element is there once, or may be lost.
  bool ExplainsTotal(std::size_t collective, std::size_t element, double total,
                     const GoneOwners& owners) const;
  // Checks the loss in an element of a removed owner in a wire format.
  void CheckRoundedLoss(Instant now, std::size_t collective, Rank rank, std::size_t element,
                        const GoneOwners& owners);

  RunLog& log_;
  const Bounds& bounds_;
  const ResultChecker& results_;
};

}  // namespace optireduce

#endif  // FFI_SIM_REMOVAL_CHECKER_H_
