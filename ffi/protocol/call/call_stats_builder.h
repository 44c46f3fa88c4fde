// The statistics of one call, and the member that it waited for.

#ifndef FFI_PROTOCOL_CALL_CALL_STATS_BUILDER_H_
#define FFI_PROTOCOL_CALL_CALL_STATS_BUILDER_H_

#include <cstddef>
#include <cstdint>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/call/arrivals.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

class CallStatsBuilder {
 public:
  // `collective` must outlive this.
  explicit CallStatsBuilder(const Collective& collective)
      : collective_(collective),
        last_from_(collective.self),
        arrivals_(collective.self, collective.layout.members()) {}

  // A segment that shows the time of its sender's program.
  void RecordArrival(Instant now, MemberIndex from) {
    last_from_ = from;
    arrivals_.Record(now, from);
  }
  // `bytes` of the result arrived, with so many contributions.
  void RecordResult(MemberIndex from, std::uint64_t bytes, std::uint16_t contributors) {
    if (from != collective_.self) last_from_ = from;
    result_bytes_ += bytes;
    contributed_ += static_cast<double>(bytes) * contributors;
  }
  std::uint64_t missing_bytes() const { return collective_.result_bytes() - result_bytes_; }

  // `missing(member)`: the number of its segments that did not come.
  template <typename Missing>
  void FindSlowest(Instant submitted_at, Instant now, Missing missing) {
    // The member with the most missing data, else the last one to send any.
    std::size_t most = 0;
    MemberIndex slowest = last_from_;
    for (const MemberIndex member : collective_.others) {
      if (missing(member) <= most) continue;
      most = missing(member);
      slowest = member;
    }
    stats.slowest = collective_.RankOf(slowest);
    // A rank that owns nothing gets no contributions, which alone tell the slowest member.
    if (collective_.layout.SegmentsOf(collective_.self) > 0) FindLatest(submitted_at, now);
  }
  // Nothing of the member's contribution has come.
  bool Absent(MemberIndex member) const { return arrivals_.Absent(member); }
  // The fractions of the result that are missing.
  void FindMissing();

  CallStats stats;

 private:
  void FindLatest(Instant submitted_at, Instant now);

  const Collective& collective_;
  MemberIndex last_from_;
  Arrivals arrivals_;
  double contributed_ = 0;  // bytes of results, times their contributors
  std::uint64_t result_bytes_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_CALL_STATS_BUILDER_H_
