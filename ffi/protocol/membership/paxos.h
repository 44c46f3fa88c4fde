// Single-decree Paxos at one rank: the decision of the members of a view on the next one. This is
// the state of an acceptor, and of a coordinator while the newest ballot is this rank's own. It
// sends nothing.
//
//   Bid -> votes -> Propose -> acceptances -> decision
//
// A proposal that may have been decided is adopted by every later ballot (FindAccepted), so two
// ballots never decide different views.

#ifndef FFI_PROTOCOL_MEMBERSHIP_PAXOS_H_
#define FFI_PROTOCOL_MEMBERSHIP_PAXOS_H_

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/wire/membership_message.h"

namespace optireduce {

// Members of the next view, and the first call of each bucket with exactly these.
struct Proposal {
  std::vector<Rank> members;
  std::vector<CallId> firsts;
};

// With `accepted`, the proposal of that ballot. Else `firsts` are the newest calls of the voter.
struct Vote {
  Ballot accepted;
  Proposal proposal;
};

class Paxos {
 public:
  // `members`: their number in the present view.
  Paxos(Rank self, std::size_t members) : self_(self), members_(members) {}

  bool IsMajority(std::size_t count) const { return count * 2 > members_; }
  // The newest known ballot: this rank takes part in no older one.
  const Ballot& ballot() const { return ballot_; }
  Instant ballot_at() const { return ballot_at_; }
  bool under_way() const { return ballot_.round > 0; }

  // ---- The acceptor.

  // A ballot exists.
  void Promise(Instant now, const Ballot& ballot);
  // A coordinator asks for a vote. False if the ballot is older than another one.
  bool Prepare(Instant now, const Ballot& ballot);
  // A coordinator proposes. False likewise.
  bool Accept(Instant now, const Ballot& ballot, Proposal proposal);
  // This rank has voted: it begins no call until the decision.
  bool frozen() const { return frozen_; }
  // The accepted ballot, of round 0 if there is none, and its proposal.
  const Ballot& accepted_ballot() const { return accepted_ballot_; }
  const Proposal& accepted() const { return accepted_; }

  // ---- The coordinator.

  // The newest ballot is this rank's own.
  bool coordinates() const { return under_way() && ballot_.coordinator == self_; }
  bool IsOwn(const Ballot& ballot) const { return coordinates() && ballot == ballot_; }
  // Begins a ballot, with this rank's vote. `newest`: the newest calls of this rank.
  void Bid(Instant now, const std::vector<CallId>& newest);
  // Votes that come after the proposal are ignored.
  void AddVote(Rank from, Vote vote);
  // A majority of the members has voted.
  bool HasVotes() const { return IsMajority(votes_.size()); }
  std::vector<Rank> Voters() const;
  // The accepted proposal of the newest ballot among the votes.
  std::optional<Proposal> FindAccepted() const;
  // The calls that follow the newest ones of the votes.
  std::vector<CallId> FirstsAfterVotes() const;
  // Proposes to the members, and accepts.
  void Propose(Proposal proposal);
  bool proposed() const { return proposed_; }
  void AddAcceptance(Rank from) { acceptors_.insert(from); }
  // A majority of the members has accepted: accepted() is decided.
  bool IsDecided() const { return proposed_ && IsMajority(acceptors_.size()); }
  // The member has answered the last request: with a vote, or else with an acceptance.
  bool HasAnswered(Rank member) const {
    return proposed_ ? acceptors_.contains(member) : votes_.contains(member);
  }

 private:
  Rank self_;
  std::size_t members_;
  Ballot ballot_;
  Instant ballot_at_{};
  bool frozen_ = false;
  Ballot accepted_ballot_;
  Proposal accepted_;
  // The votes for `ballot_`, of which this rank is the coordinator.
  std::map<Rank, Vote> votes_;
  bool proposed_ = false;
  std::set<Rank> acceptors_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_MEMBERSHIP_PAXOS_H_
