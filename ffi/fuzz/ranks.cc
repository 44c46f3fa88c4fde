#include "ffi/fuzz/ranks.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"
#include "ffi/protocol/bucket/bucket_parts.h"
#include "ffi/protocol/membership/shared_membership.h"
#include "ffi/protocol/peers/peer.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Chosen: small, so that a silent rank is given up within one input.
constexpr Duration kPeerTimeout = std::chrono::seconds(4);
constexpr Duration kMismatchTimeout = std::chrono::seconds(2);
// Chosen: more than any rank here sends in one turn; the rest leaves in the next.
constexpr int kTransmitsPerTurn = 64;
constexpr std::size_t kBatchMax = 4;
// Chosen: some collectives of the endpoint's programs are split, some are not.
constexpr std::size_t kCutBytesMin = 1024;

EndpointOptions EndpointOf(const RanksOptions& options, std::uint16_t rank) {
  EndpointOptions endpoint;
  endpoint.rank = Rank(rank);
  endpoint.world_size = options.ranks;
  endpoint.session = options.session;
  endpoint.secret[0] = std::byte{options.secret};
  endpoint.protection = options.protection;
  endpoint.lane = options.lane;
  endpoint.datagram_bytes_max = options.datagram_bytes_max;
  endpoint.peer_timeout = kPeerTimeout;
  endpoint.mismatch_timeout = kMismatchTimeout;
  endpoint.early_bytes_max = options.early_bytes_max;
  endpoint.late_budget = options.late_budget;
  return endpoint;
}

Sealer SealerOf(const RanksOptions& options, std::uint16_t from, std::uint16_t to) {
  Result<Key> key = DirectionKey(EndpointOf(options, from), Rank(from), Rank(to));
  OR_CHECK(key.ok());
  Result<Sealer> sealer = Sealer::Create(key.value(), options.protection);
  OR_CHECK(sealer.ok());
  return std::move(sealer.value());
}

std::uint64_t NumberOf(std::span<const std::byte> datagram) {
  // The top of wire.h gives the offset.
  return ByteReader(datagram.subspan(20)).Read<std::uint64_t>(6);
}

}  // namespace

Ranks::Ranks(const RanksOptions& options)
    : options_(options), silent_(options.ranks), buffer_(kBatchMax * options.datagram_bytes_max) {
  for (std::uint16_t rank = 0; rank < options.ranks; ++rank) {
    EndpointOptions of_rank = EndpointOf(options, rank);
    of_rank.lanes = options.lanes;
    std::shared_ptr<SharedMembership> membership;
    if (options.lanes > 1) {
      membership = std::make_shared<SharedMembership>(of_rank.rank, options.ranks, kPeerTimeout,
                                                      options.lanes);
    }
    for (std::uint16_t lane = 0; lane < options.lanes; ++lane) {
      if (options.lanes > 1) of_rank.lane = lane;
      Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::Create(of_rank, membership);
      OR_CHECK(endpoint.ok());
      endpoints_.push_back(std::move(endpoint.value()));
    }
  }
}

void Ranks::Submit(std::uint16_t rank, CollectiveSpec spec, std::uint32_t sequence, bool drain) {
  const std::size_t bytes = spec.elements * SizeOf(spec.element_type);
  Call& call = calls_.emplace_back(Call{
      .rank = rank,
      .token = next_token_++,
      .sequence = sequence,
      .drain = drain,
      .deadline = spec.reduce_scatter_deadline + spec.all_gather_deadline,
      .exact = spec.reduce_scatter == LatePolicy::kWait && spec.all_gather == LatePolicy::kWait &&
               spec.element_type == ElementType::kFloat32 && !Rounds(spec),
      .parts = 0,
      .failed = false,
      .values = std::vector<float>((bytes + sizeof(float) - 1) / sizeof(float))});
  for (std::size_t i = 0; i < call.values.size(); ++i) {
    call.values[i] = ContributionOf(rank, sequence, i);
  }
  spec.members.clear();
  for (std::uint16_t r = 0; r < options_.ranks; ++r) spec.members.push_back(Rank(r));
  Submission submission;
  submission.spec = std::move(spec);
  submission.sequence = Sequence(sequence);
  submission.token = call.token;
  submission.drain = drain;
  submission.leaves = {{.data = reinterpret_cast<std::byte*>(call.values.data()),
                        .elements = submission.spec.elements}};
  std::vector<BucketPart> parts = CutBucket(submission, options_.lanes, kCutBytesMin);
  call.parts = parts.size();
  const auto made = std::prev(calls_.end());
  for (BucketPart& part : parts) {
    part.submission.token = made->token;
    const auto lane = static_cast<std::uint16_t>(part.lane);
    if (!endpoint(rank, lane).Submit(now_, std::move(part.submission)).ok()) {
      FinishPart(made, /*ok=*/false);
    }
  }
}

void Ranks::Deliver(const Sent& sent) {
  if (silent_[sent.to]) return;
  // Memory of exactly this size, so that a sanitizer detects a read beyond it.
  const Bytes exact(sent.datagram.begin(), sent.datagram.end());
  endpoint(sent.to, sent.lane).HandleDatagram(now_, exact);
}

void Ranks::Poll() {
  for (std::uint16_t rank = 0; rank < size(); ++rank) {
    if (silent_[rank]) continue;
    for (std::uint16_t lane = 0; lane < lanes(); ++lane) PollLane(rank, lane);
  }
}

void Ranks::PollLane(std::uint16_t rank, std::uint16_t lane) {
  for (int i = 0; i < kTransmitsPerTurn; ++i) {
    const auto transmit = endpoint(rank, lane).PollTransmit(now_, buffer_, kBatchMax);
    if (!transmit) break;
    Bytes sent;
    Join(transmit->pieces, sent);
    for (std::size_t at = 0; at < sent.size(); at += transmit->datagram_bytes) {
      const auto one =
          std::span(sent).subspan(at, std::min(transmit->datagram_bytes, sent.size() - at));
      wire_.push_back({.from = rank,
                       .to = transmit->to.value(),
                       .lane = lane,
                       .datagram = Bytes(one.begin(), one.end())});
    }
  }
  while (const auto done = endpoint(rank, lane).PollEvent()) Finish(rank, *done);
}

void Ranks::Advance(Duration by) {
  now_ += by;
  for (std::uint16_t rank = 0; rank < size(); ++rank) {
    if (silent_[rank]) continue;
    for (std::uint16_t lane = 0; lane < lanes(); ++lane) endpoint(rank, lane).HandleTimeout(now_);
  }
}

void Ranks::Finish(std::uint16_t rank, const CallDone& done) {
  const auto call = std::ranges::find(calls_, done.token, &Call::token);
  OR_CHECK(call != calls_.end() && call->rank == rank);
  const Duration deadline = done.stats.deadline;
  learned_ += done.status.ok() && deadline > Duration::zero() && deadline != call->deadline;
  FinishPart(call, done.status.ok());
}

bool Ranks::HasSum(const Call& call) const {
  for (std::size_t i = 0; i < call.values.size(); ++i) {
    float sum = 0;
    for (std::uint16_t r = 0; r < size(); ++r) sum += ContributionOf(r, call.sequence, i);
    if (call.values[i] != sum) return false;
  }
  return true;
}

void Ranks::FinishPart(std::list<Call>::iterator call, bool ok) {
  call->failed = call->failed || !ok;
  if (--call->parts > 0) return;
  ++(call->failed ? failed_ : completed_);
  drained_ += !call->failed && call->drain;
  wrong_sums_ += !call->failed && call->exact && !HasSum(*call);
  calls_.erase(call);
}

RanksOptions Ranks::KeysOf(const Sent& sent) const {
  RanksOptions options = options_;
  if (options_.lanes > 1) options.lane = sent.lane;
  return options;
}

Bytes Ranks::Seal(Sent sent) const {
  Bytes& datagram = sent.datagram;
  OR_CHECK(datagram.size() >= kOverheadBytes);
  const std::size_t content_bytes = datagram.size() - kTagBytes;
  const std::span<std::byte> payload =
      std::span(datagram).first(content_bytes).subspan(kHeaderBytes);
  SealerOf(KeysOf(sent), sent.from, sent.to)
      .Seal(NumberOf(datagram), std::span(datagram).first(kHeaderBytes), payload, payload,
            std::span(datagram).subspan(content_bytes).first<kTagBytes>());
  return std::move(datagram);
}

Bytes Ranks::Open(const Sent& sent) const {
  const std::span<const std::byte> datagram(sent.datagram);
  const std::size_t content_bytes = datagram.size() - kTagBytes;
  Bytes scratch(datagram.size());
  const auto payload = SealerOf(KeysOf(sent), sent.from, sent.to)
                           .Open(NumberOf(datagram), datagram.first(content_bytes), kHeaderBytes,
                                 datagram.subspan(content_bytes).first<kTagBytes>(), scratch);
  OR_CHECK(payload.has_value());
  Bytes readable = sent.datagram;
  std::ranges::copy(*payload, readable.begin() + kHeaderBytes);
  return readable;
}

}  // namespace optireduce
