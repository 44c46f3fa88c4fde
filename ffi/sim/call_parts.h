// The calls of a simulated process, which its lanes send part by part.

#ifndef FFI_SIM_CALL_PARTS_H_
#define FFI_SIM_CALL_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/protocol/bucket/bucket_parts.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Chosen: most buckets of a scenario are larger, and some are not.
inline constexpr std::size_t kSimCutBytesMin = 64;

class CallParts {
 public:
  explicit CallParts(std::uint64_t lanes) : lanes_(lanes) {}

  // The parts of a call, each with a token of its own.
  std::vector<BucketPart> Cut(const Submission& submission);
  // The token of the call of a part.
  std::uint64_t CallOf(std::uint64_t part_token) const { return part_token / lanes_; }
  // Handles the end or the refusal of a part. Returns the whole call after its last part.
  std::optional<CallDone> End(const CallDone& part);

 private:
  struct UnderWay {
    std::size_t left = 0;
    PartOutcomes outcomes;
  };
  std::uint64_t lanes_;
  std::map<std::uint64_t, UnderWay> calls_;          // the call of each token
  std::map<std::uint64_t, std::uint64_t> elements_;  // elements of a part, one for each token
};

}  // namespace optireduce

#endif  // FFI_SIM_CALL_PARTS_H_
