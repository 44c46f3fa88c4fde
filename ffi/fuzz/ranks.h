// A session of a few ranks in one thread: endpoints, their calls, and the datagrams under way,
// which the driving program may deliver, keep or change. With several lanes a rank has an endpoint
// for each, and calls are split into parts for them.

#ifndef FFI_FUZZ_RANKS_H_
#define FFI_FUZZ_RANKS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "ffi/base/time.h"
#include "ffi/crypto/seal.h"
#include "ffi/fuzz/mutate.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

struct RanksOptions {
  std::uint16_t ranks = 2;
  std::uint32_t session = 1;
  std::uint8_t secret = 1;  // first byte of the secret
  std::uint16_t lane = 0;   // the lane of all endpoints, if there is one for each rank
  std::uint16_t lanes = 1;  // endpoints of each rank
  Protection protection = Protection::kAuthenticate;
  std::size_t datagram_bytes_max = 1472;
  std::size_t early_bytes_max = std::size_t{1} << 20;
  double late_budget = 0;  // budget of learned deadlines; 0: they are not learned
};

struct Sent {
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  std::uint16_t lane = 0;
  Bytes datagram;
};

// The values of rank `rank` in call `sequence`; sums of few of them are exact.
inline float ContributionOf(std::uint16_t rank, std::uint32_t sequence, std::size_t i) {
  return static_cast<float>((rank + 1u) * 100u + sequence % 50u + i % 7u);
}

class Ranks {
 public:
  explicit Ranks(const RanksOptions& options);

  std::uint16_t size() const { return options_.ranks; }
  std::uint16_t lanes() const { return options_.lanes; }
  Instant now() const { return now_; }
  Endpoint& endpoint(std::uint16_t rank, std::uint16_t lane = 0) {
    return *endpoints_[static_cast<std::size_t>(rank) * options_.lanes + lane];
  }
  std::vector<Sent>& wire() { return wire_; }

  // A call among all ranks, all of whose contributions are ContributionOf().
  void Submit(std::uint16_t rank, CollectiveSpec spec, std::uint32_t sequence, bool drain = false);
  void Deliver(const Sent& sent);
  // Lets the ranks send and report their pending datagrams and events, up to a limit of datagrams
  // each.
  void Poll();
  void Advance(Duration by);
  // From now on no datagram passes from or to the rank, as with a frozen process; or they pass
  // again.
  void SetSilent(std::uint16_t rank, bool silent) { silent_[rank] = silent; }
  bool silent(std::uint16_t rank) const { return silent_[rank]; }

  std::uint64_t calls_under_way() const { return calls_.size(); }
  std::uint64_t calls_completed() const { return completed_; }
  std::uint64_t calls_failed() const { return failed_; }
  std::uint64_t drains_completed() const { return drained_; }
  // Completed calls whose deadlines differed from those that their programs requested.
  std::uint64_t deadlines_learned() const { return learned_; }
  // Completed calls without missing data whose sum was not exact.
  std::uint64_t wrong_sums() const { return wrong_sums_; }

  // Seals a readable datagram (header, payload, room for the tag) with the key of its direction.
  Bytes Seal(Sent sent) const;
  // The readable form of a datagram that a rank has sent; its tag is undefined.
  Bytes Open(const Sent& sent) const;

 private:
  struct Call {
    std::uint16_t rank;
    std::uint64_t token;
    std::uint32_t sequence;
    bool drain;
    Duration deadline;  // both stages together, as the program requested
    bool exact;         // neither stage drops, and all elements are floats
    std::size_t parts;  // still open
    bool failed;        // true if one part failed
    std::vector<float> values;
  };
  void PollLane(std::uint16_t rank, std::uint16_t lane);
  void Finish(std::uint16_t rank, const CallDone& done);
  void FinishPart(std::list<Call>::iterator call, bool ok);
  // Every element is the sum of the contributions.
  bool HasSum(const Call& call) const;
  RanksOptions KeysOf(const Sent& sent) const;

  RanksOptions options_;
  Instant now_{};
  std::list<Call> calls_;                             // outlives the endpoints that write into it
  std::vector<std::unique_ptr<Endpoint>> endpoints_;  // ordered by rank, then lane
  std::vector<bool> silent_;                          // one for each rank
  std::vector<Sent> wire_;
  std::vector<std::byte> buffer_;
  std::uint64_t next_token_ = 1;
  std::uint64_t completed_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t drained_ = 0;
  std::uint64_t learned_ = 0;
  std::uint64_t wrong_sums_ = 0;
};

}  // namespace optireduce

#endif  // FFI_FUZZ_RANKS_H_
