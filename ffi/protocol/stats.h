// Named counters of one endpoint. Every refusal and every loss is counted under one name. Further
// counts for each peer, where one link is to be told from another.

#ifndef FFI_PROTOCOL_STATS_H_
#define FFI_PROTOCOL_STATS_H_

#include <cstdint>

namespace optireduce {

// X(name, meaning)
#define OPTIREDUCE_COUNTERS(X)                                                                    \
  X(calls_completed, "calls that ended with a result")                                            \
  X(calls_failed, "calls that ended with an error")                                               \
  X(calls_skipped, "calls of the others that this rank has skipped after a pause")                \
  X(datagrams_sent, "datagrams sent, retransmissions and acknowledgements included")              \
  X(datagrams_received, "datagrams received and accepted")                                        \
  X(bytes_sent, "UDP payload bytes sent")                                                         \
  X(bytes_received, "UDP payload bytes received and accepted")                                    \
  X(segments_retransmitted, "segments retransmitted")                                             \
  X(segments_refused, "segments that a peer refused for now; retransmitted once it accepts them") \
  X(segments_abandoned, "segments lost and not retransmitted, because their stage had closed")    \
  X(segments_relayed, "segments of the sums of late ranks that this rank has forwarded")          \
  X(stages_expired, "stages with data missing at their deadline")                                 \
  X(probes_sent, "probes sent because acknowledgements, data or room in a window were missing")   \
  X(rejected_malformed, "refused: too short, unreadable, or inconsistent in itself")              \
  X(rejected_oversized, "refused: longer than any datagram of this session")                      \
  X(rejected_version, "refused: another version of the wire format")                              \
  X(rejected_foreign, "refused: of another session, or from no peer of this one")                 \
  X(rejected_unauthenticated, "refused: the tag does not match the content")                      \
  X(rejected_replayed, "refused: this datagram was received before")                              \
  X(rejected_removed, "refused: from a former member of the session")                             \
  X(rejected_early, "refused: for a call too far ahead, or beyond the memory for early calls")    \
  X(rejected_mismatched, "refused: inconsistent with the collective that it names")               \
  X(segments_duplicate, "segments received before")                                               \
  X(segments_late, "segments that arrived after their stage had closed")                          \
  X(segments_stale, "segments for a call that has ended")

struct Counters {
#define OPTIREDUCE_DECLARE_COUNTER(name, meaning) std::uint64_t name = 0;
  OPTIREDUCE_COUNTERS(OPTIREDUCE_DECLARE_COUNTER)
#undef OPTIREDUCE_DECLARE_COUNTER
};

// The datagrams to and from one peer.
struct PeerTraffic {
  std::uint64_t bytes_sent = 0;  // UDP payload
  std::uint64_t bytes_received = 0;
  std::uint64_t segments_sent = 0;  // retransmissions included
  std::uint64_t segments_retransmitted = 0;
  std::uint64_t segments_received = 0;
  std::uint64_t segments_late = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_STATS_H_
