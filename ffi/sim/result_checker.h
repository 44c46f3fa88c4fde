// The sums: of each call, and, with deferral, of all calls together.

#ifndef FFI_SIM_RESULT_CHECKER_H_
#define FFI_SIM_RESULT_CHECKER_H_

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ffi/protocol/submission.h"
#include "ffi/sim/run_log.h"

namespace optireduce {

class ResultChecker {
 public:
  explicit ResultChecker(RunLog& log) : log_(log) {}

  // Handles the result of a call.
  void Check(Instant now, const SimCallRecord& record, std::span<const std::byte> bucket,
             const CallStats& stats);
  // The sum of all that the calls of a collective have given the rank.
  const std::vector<double>& TotalOf(std::size_t collective, Rank rank) const;
  // "element 3 of all calls adds up to 5, 2 times that of rank 1 to call 4".
  std::string Describe(const SimCollective& collective, std::size_t element, double total) const;

 private:
  std::string FindWrong(const SimCallRecord& record, std::span<const std::byte> bucket,
                        const CallStats& stats);
  // A call of a collective that defers late data; its drain shows any loss.
  std::string CheckDeferred(const SimCallRecord& record, std::span<const std::byte> bucket,
                            const CallStats& stats);
  // Where ranks skip calls, results that contain all contributions are the same on all ranks.
  std::string CheckSame(const SimCallRecord& record, std::span<const std::byte> bucket,
                        const CallStats& stats);
  std::string CheckDrain(const SimCallRecord& record, const CallStats& stats) const;
  std::string CheckConserved(const SimCallRecord& record) const;
  // Each contribution is there, and none counts twice, where some also stand for absent ranks.
  std::string CheckRepresented(const SimCallRecord& record) const;
  // After failed calls contributions may be lost, and none is there twice.
  std::string CheckNotTwice(const SimCallRecord& record) const;
  // An exact call in a wire format: near the sum, and the same bits for all.
  std::string CheckRounded(const SimCallRecord& record, std::span<const std::byte> bucket,
                           const CallStats& stats);
  const std::vector<std::byte>& Reference(SimCall call);

  using Key = std::pair<std::size_t, std::size_t>;
  RunLog& log_;
  // The references. Key: (collective, index).
  std::map<Key, std::vector<std::byte>> references_;
  // The bits of the first result, where values are rounded. Key: (collective, index).
  std::map<Key, std::vector<std::byte>> rounded_;
  // The hash of the first whole result. Key: (collective, number in the session).
  std::map<std::pair<std::size_t, Sequence>, std::uint64_t> whole_;
  // The totals. Key: (collective, rank).
  std::map<Key, std::vector<double>> totals_;
};

}  // namespace optireduce

#endif  // FFI_SIM_RESULT_CHECKER_H_
