#include "ffi/protocol/membership/paxos.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ranges>
#include <utility>

namespace optireduce {

void Paxos::Promise(Instant now, const Ballot& ballot) {
  if (ballot <= ballot_) return;
  ballot_ = ballot;
  ballot_at_ = now;
  votes_.clear();
  acceptors_.clear();
  proposed_ = false;
}

bool Paxos::Prepare(Instant now, const Ballot& ballot) {
  if (ballot < ballot_) return false;
  Promise(now, ballot);
  frozen_ = true;
  return true;
}

bool Paxos::Accept(Instant now, const Ballot& ballot, Proposal proposal) {
  if (!Prepare(now, ballot)) return false;
  accepted_ballot_ = ballot;
  accepted_ = std::move(proposal);
  return true;
}

void Paxos::Bid(Instant now, const std::vector<CallId>& newest) {
  Prepare(now, {.round = ballot_.round + 1, .coordinator = self_});
  const bool accepted = accepted_ballot_.round > 0;
  AddVote(self_, {.accepted = accepted_ballot_,
                  .proposal = accepted ? accepted_ : Proposal{.members = {}, .firsts = newest}});
}

void Paxos::AddVote(Rank from, Vote vote) {
  if (!proposed_) votes_.insert_or_assign(from, std::move(vote));
}

std::vector<Rank> Paxos::Voters() const {
  const auto voters = std::views::keys(votes_);
  return {voters.begin(), voters.end()};
}

std::optional<Proposal> Paxos::FindAccepted() const {
  const auto newest =
      std::ranges::max_element(votes_, {}, [](const auto& entry) { return entry.second.accepted; });
  if (newest == votes_.end() || newest->second.accepted.round == 0) return std::nullopt;
  return newest->second.proposal;
}

std::vector<CallId> Paxos::FirstsAfterVotes() const {
  std::map<CollectiveId, Sequence> newest;
  for (const Vote& vote : std::views::values(votes_)) {
    for (const CallId call : vote.proposal.firsts) {
      Sequence& highest = newest.try_emplace(call.collective, call.sequence).first->second;
      highest = std::max(highest, call.sequence);
    }
  }
  std::vector<CallId> firsts;
  for (const auto& [collective, sequence] : newest) {
    // No call can follow the last number.
    const std::uint32_t next =
        std::min(sequence.value(), std::numeric_limits<std::uint32_t>::max() - 1) + 1;
    firsts.push_back({.collective = collective, .sequence = Sequence(next)});
  }
  return firsts;
}

void Paxos::Propose(Proposal proposal) {
  accepted_ballot_ = ballot_;
  accepted_ = std::move(proposal);
  proposed_ = true;
  acceptors_ = {self_};
}

}  // namespace optireduce
