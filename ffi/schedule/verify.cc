#include "ffi/schedule/verify.h"

#include <cstddef>
#include <string>
#include <vector>

#include "ffi/base/bitmap.h"

namespace optireduce {
namespace {

std::string TextOf(std::size_t round, const Transfer& transfer) {
  return "round " + std::to_string(round) + ", transfer from " +
         std::to_string(transfer.from.value()) + " to " + std::to_string(transfer.to.value()) +
         ", shard " + std::to_string(transfer.shard.value()) +
         (transfer.op == Op::kReduce ? ", reduce" : ", copy");
}

// The contents of every rank, while the rounds run in sequence.
class Run {
 public:
  explicit Run(const Schedule& schedule)
      : n_(schedule.world_size),
        incast_(schedule.incast),
        contributions_(n_, Bitmap(n_)),
        has_(n_, Bitmap(n_)) {
    for (std::size_t rank = 0; rank < n_; ++rank) contributions_[rank].Insert(rank);
    for (std::size_t shard = 0; shard < n_; ++shard) RecordReduced(shard);
  }

  Status RunRound(std::size_t number, const Round& round);
  Status CheckEnd() const;

 private:
  // Empty if the transfer is correct in the state at the beginning of its round.
  std::string WhatIsWrong(const Transfer& transfer);
  void RecordReduced(std::size_t shard) {
    if (contributions_[shard].full()) has_[shard].Insert(shard);
  }

  std::size_t n_;
  std::size_t incast_;
  std::vector<Bitmap> contributions_;  // one for each shard: contributions added by its owner
  std::vector<Bitmap> has_;            // one for each rank: reduced shards present
};

std::string Run::WhatIsWrong(const Transfer& transfer) {
  if (transfer.from.index() >= n_ || transfer.to.index() >= n_ || transfer.shard.index() >= n_) {
    return "ranks and shards must be below the world size, " + std::to_string(n_);
  }
  if (transfer.from == transfer.to) return "a rank must not send to itself";
  if (transfer.op == Op::kCopy) {
    if (!has_[transfer.from.index()].Contains(transfer.shard.index())) {
      return "the sender does not have the reduced shard when the round begins";
    }
    return "";
  }
  if (transfer.to != transfer.shard) return "a contribution must go to the owner of its shard";
  if (!contributions_[transfer.shard.index()].Insert(transfer.from.index())) {
    return "this contribution was added before; it would count twice";
  }
  return "";
}

Status Run::RunRound(std::size_t number, const Round& round) {
  std::vector<Bitmap> senders(n_, Bitmap(n_));  // one for each receiver
  for (const Transfer& transfer : round) {
    std::string wrong = WhatIsWrong(transfer);
    if (wrong.empty()) {
      Bitmap& to_this = senders[transfer.to.index()];
      to_this.Insert(transfer.from.index());
      if (to_this.count() > incast_) {
        wrong = "the receiver has more senders than the incast, " + std::to_string(incast_);
      }
    }
    if (!wrong.empty()) {
      return InvalidArgument(TextOf(number, transfer) + ": " + wrong + ".");
    }
  }
  // Data that arrives in a round can be forwarded in the next.
  for (const Transfer& transfer : round) {
    if (transfer.op == Op::kCopy) has_[transfer.to.index()].Insert(transfer.shard.index());
  }
  for (std::size_t shard = 0; shard < n_; ++shard) RecordReduced(shard);
  return {};
}

Status Run::CheckEnd() const {
  for (std::size_t shard = 0; shard < n_; ++shard) {
    for (std::size_t rank = 0; rank < n_; ++rank) {
      if (!contributions_[shard].Contains(rank)) {
        return InvalidArgument("shard " + std::to_string(shard) + ": the contribution of rank " +
                               std::to_string(rank) + " never reaches its owner.");
      }
    }
    for (std::size_t rank = 0; rank < n_; ++rank) {
      if (!has_[rank].Contains(shard)) {
        return InvalidArgument("shard " + std::to_string(shard) + ": rank " + std::to_string(rank) +
                               " never gets it after it was reduced.");
      }
    }
  }
  return {};
}

}  // namespace

Status VerifySchedule(const Schedule& schedule) {
  if (schedule.world_size == 0) {
    return InvalidArgument("a schedule needs a world size of at least 1, got 0.");
  }
  Run run(schedule);
  for (std::size_t number = 0; number < schedule.rounds.size(); ++number) {
    if (Status status = run.RunRound(number, schedule.rounds[number]); !status.ok()) return status;
  }
  return run.CheckEnd();
}

}  // namespace optireduce
