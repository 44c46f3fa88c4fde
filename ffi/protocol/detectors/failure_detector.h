// Finds peers that are silent, that lose long datagrams, that have left or were removed, and what
// that means for the open calls. Silence is measured on the network thread of the other rank: a
// program that computes for long is never taken for dead.
//
// The only writer of the state of a peer.

#ifndef FFI_PROTOCOL_DETECTORS_FAILURE_DETECTOR_H_
#define FFI_PROTOCOL_DETECTORS_FAILURE_DETECTOR_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/session/admission.h"
#include "ffi/protocol/session/lane_membership.h"
#include "ffi/protocol/session/session_state.h"
#include "ffi/protocol/session/transmitter.h"
#include "ffi/protocol/session/verdict.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {

class FailureDetector {
 public:
  // All must outlive this.
  FailureDetector(SessionState& session, const LaneMembership& membership, Admission& admission,
                  Transmitter& transmitter)
      : session_(session),
        membership_(membership),
        admission_(admission),
        transmitter_(transmitter) {}

  // ---- The states. Release() follows each change to a state in which the peer is gone.

  // An authenticated datagram of a peer that is not removed.
  void Heard(Instant now, Peer& peer);
  // False if the peer was silent before.
  bool MarkSilent(Rank rank, std::string why);
  void MarkLeft(Rank rank, std::string_view why);
  // The adopted view is without the peer, or without this rank.
  void MarkRemoved(Rank rank);
  // The members do not agree: suspects count as silent. Returns these.
  std::vector<Rank> GiveUpSuspects();

  // ---- Silence.

  // After a timeout of the path to the peer.
  void RecordUnanswered(Rank rank);
  // Peers that have not answered for too long, whether or not a call waits for them.
  std::vector<Rank> FindUnanswered(Instant now);
  // Members that have been silent for too long since a call of theirs began to wait; of a call that
  // does not survive them the first. Asks the quiet members for a sign.
  std::vector<Rank> FindSilent(Instant now, const CollectiveSpec& spec, Instant since);
  // The error of a call that does not survive a silent member, although this rank may have all that
  // it needs of it: another rank may not.
  Status WhyAbandoned(Instant now, const Exchange& exchange) const;
  std::string WhySilent(Rank rank) const;
  // The first member that a new call needs and cannot reach; null if there is none.
  const Peer* FindUnreachable(const Collective& collective, const Submission& submission) const;

  // ---- Paths that lose long datagrams.

  struct PathChange {
    bool changed = false;            // the path has become one, or is none now
    std::optional<std::string> why;  // it is one: the error of calls that need the peer
  };
  PathChange CheckPath(Rank rank);
  // A message about the members may name a path of its sender.
  void RecordNarrowPath(const Header& header);
  // A path from the rank, or to it, that loses long datagrams, with their lengths; empty if none is
  // known.
  std::string DescribeNarrowPath(Rank rank) const;
  // The calls, here or at the peer, that wait for the peer, and end with an error for it.
  std::vector<Verdict> FindUnserved(Rank rank, const std::string& why);

  // ---- The end of a peer.

  struct PeerLoss {
    std::vector<Verdict> verdicts;
    bool undecided = false;  // the members have to agree on how some call continues
  };
  // After a change of state: keeps nothing more for a peer that is gone.
  PeerLoss DropPeer(Instant now, Rank gone);

 private:
  // `from` names the sender, unless it is this rank.
  std::string DescribeHole(const BlackHole& hole, const std::string& from, Rank to) const;
  // The effect of a member's end on a call.
  enum class Loss : std::uint8_t {
    kNone,
    kUndecided,  // the members have to agree on how the call continues
    kFatal,      // the call cannot be completed
  };
  // The call waits for the member no more, and keeps nothing for it.
  Loss DropPeerIn(Instant now, OpenCall& open, MemberIndex gone);
  PeerLoss DropPeerInCalls(Instant now, const Peer& peer);
  // Nothing is dropped yet: the members will agree on who takes part.
  bool Keeps(const CollectiveSpec& spec, const Peer& peer) const;
  // The program has made the call, which fails or waits without any of its members.
  bool NeedsAllMembers(const Exchange& exchange) const;
  // The call cannot be completed without the member.
  bool NeedsGone(const Exchange& exchange, const Peer& peer, MemberIndex gone) const;
  // Only the peer had opened the call, which will never be made here.
  static bool OnlyOpenedBy(const Peer& gone, const Exchange& exchange);
  Duration SilenceSince(Instant now, Instant since, Rank member) const;

  SessionState& session_;
  const LaneMembership& membership_;
  Admission& admission_;
  Transmitter& transmitter_;
  std::set<Rank> unanswered_;  // peers whose flow has been unanswered, and may still be
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DETECTORS_FAILURE_DETECTOR_H_
