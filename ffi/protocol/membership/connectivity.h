// The members that reach each other, as far as this rank knows: it hears some of them on each lane,
// and each of them reports its own suspects.
//
// Of two ranks that do not reach each other, the one that is not heard is to blame. A rank that is
// heard all the time over a path that loses the long datagrams to it is not: the sender counts
// itself among its suspects then, and is to blame.

#ifndef FFI_PROTOCOL_MEMBERSHIP_CONNECTIVITY_H_
#define FFI_PROTOCOL_MEMBERSHIP_CONNECTIVITY_H_

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/membership/slices.h"

namespace optireduce {

class Connectivity {
 public:
  // Chosen: in a quarter of a peer_timeout all ranks answer a rank that slept and took them for
  // silent.
  static constexpr int kAnswersPerTimeout = 4;

  // A rank that is suspected has `last_chance` to say otherwise.
  Connectivity(Rank self, std::uint16_t world_size, std::uint16_t lanes, Duration peer_timeout,
               Duration last_chance, Slices slices = Slices(1));

  // ---- Evidence.

  // `rank` was heard over the lane. True if that ends a suspicion.
  bool Hear(Instant now, std::uint16_t lane, Rank rank);
  // `rank` is silent on the lane. False if it was suspected there before.
  bool Suspect(std::uint16_t lane, Rank rank);
  // An unusable lane is suspected although the rank is heard there, and so is this rank itself.
  void SetUnusable(std::uint16_t lane, Rank rank, bool unusable);
  // Suspects each member on each lane on which it was not heard for a peer_timeout after `since`.
  void SuspectSilent(Instant now, Instant since, std::span<const Rank> members);
  // `from` reports its suspects, ascending.
  void HandleReport(Instant now, Rank from, const std::vector<Rank>& suspects);
  // The members have changed: reports about the members before say nothing.
  void ClearReports();

  // ---- Conclusions.

  // `rank` was heard over the lane after `since`, and not long ago.
  bool HeardLately(Instant now, Instant since, std::uint16_t lane, Rank rank) const;
  // Both hear each other.
  bool Reaches(Instant now, Rank rank) const;
  // The members of the slices that are reached as a whole; this rank's slice includes this rank.
  std::vector<Rank> WholeReached(Instant now, std::span<const Rank> members) const;
  // A member is suspected, or suspects another.
  bool InDoubt(Instant now, std::span<const Rank> members) const;
  // A member is out of reach of this rank, or for a peer_timeout out of reach of another.
  bool IsParted(Instant now, std::span<const Rank> members) const;
  std::vector<Rank> SuspectsAmong(std::span<const Rank> members) const;
  // This rank suspects them, or another one has reported that it does.
  std::vector<Rank> SuspectedByAny(std::span<const Rank> ranks) const;
  // The rank is silent on some lane, and heard on another: it can vote.
  bool IsPartlySilent(Instant now, Rank rank) const;
  // Some member is heard over an unusable lane.
  bool HearsUnusable(Instant now, std::span<const Rank> members) const;
  // Some member is partly silent, and the evidence blames no rank, or this one.
  bool LacksEvidence(Instant now, std::span<const Rank> members) const;
  // The largest part of the ranks in which all reach each other, found by removing the slice that
  // the most others do not reach, again and again. The slice of rank 0 stays if several qualify:
  // its process serves the others, and the job ends with it (JAX's coordination service).
  std::vector<Rank> Agreeable(Instant now, std::vector<Rank> ranks) const;

 private:
  // One lane to another rank.
  struct Path {
    Instant heard_at{};
    bool suspected = false;
    bool unusable = false;
  };
  // Another rank.
  struct Other {
    bool suspected() const { return std::ranges::any_of(paths, &Path::suspected); }

    std::vector<Path> paths;     // one for each lane
    std::vector<Rank> suspects;  // the suspects that it reports
    Instant reported_at{};
    // Since when its reports name any rank, and this rank, without a gap.
    Instant suspects_since{};
    Instant suspects_us_since{};
  };
  // A slice, in ascending order of blame.
  struct Unreached {
    int pairs = 0;            // pairs of its ranks with others where one does not reach the other
    bool expendable = false;  // rank 0 is not in it
    int blamed = 0;           // pairs for which its rank is to blame
    Rank rank{};              // its last one
    friend auto operator<=>(const Unreached&, const Unreached&) = default;
  };

  Path& path(std::uint16_t lane, Rank rank) { return others_[rank.index()].paths[lane]; }
  const Other& other(Rank rank) const { return others_[rank.index()]; }
  bool HeardLately(Instant now, const Path& heard) const;
  // The rank has lately reported suspects.
  bool Reports(Instant now, Rank rank) const;
  // The rank says that its long datagrams do not pass to another one of `ranks`.
  bool SuspectsItself(Instant now, std::span<const Rank> ranks, Rank rank) const;
  // `a` suspects `b`, and not only for a moment.
  bool Suspects(Instant now, Rank a, Rank b) const;
  // `rank` and `other` do not reach each other, and `rank` is to blame.
  bool IsToBlame(Instant now, std::span<const Rank> ranks, Rank rank, Rank other) const;
  // The slices with such a pair among `ranks`, ascending.
  std::vector<Unreached> UnreachedAmong(Instant now, std::span<const Rank> ranks) const;

  Rank self_;
  Duration peer_timeout_;
  Duration last_chance_;
  Slices slices_;
  std::vector<Other> others_;  // one for each rank; that of this rank has no suspects, and is none
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_MEMBERSHIP_CONNECTIVITY_H_
