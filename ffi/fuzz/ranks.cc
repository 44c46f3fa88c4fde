#include "ffi/fuzz/ranks.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"
#include "ffi/protocol/peer.h"
#include "ffi/protocol/wire.h"

namespace optireduce {
namespace {

// Chosen: small, so that a silent rank is given up within one input.
constexpr Duration kPeerTimeout = std::chrono::seconds(4);
constexpr Duration kMismatchTimeout = std::chrono::seconds(2);
// Chosen: more than one turn of any rank here has to send; the rest leaves at the next.
constexpr int kTransmitsPerTurn = 64;
constexpr std::size_t kBatchMax = 4;

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
  endpoint.suspend_on_lag = options.suspend_on_lag;
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
  // Where the layout at the top of wire.h has it.
  return ByteReader(datagram.subspan(20)).Read<std::uint64_t>(6);
}

}  // namespace

Ranks::Ranks(const RanksOptions& options)
    : options_(options), silent_(options.ranks), buffer_(kBatchMax * options.datagram_bytes_max) {
  for (std::uint16_t rank = 0; rank < options.ranks; ++rank) {
    Result<std::unique_ptr<Endpoint>> endpoint = Endpoint::Create(EndpointOf(options, rank));
    OR_CHECK(endpoint.ok());
    endpoints_.push_back(std::move(endpoint.value()));
  }
}

void Ranks::Submit(std::uint16_t rank, CollectiveSpec spec, std::uint32_t sequence, bool drain) {
  const std::size_t bytes = spec.elements * SizeOf(spec.element_type);
  Call& call = calls_.emplace_back(Call{
      .rank = rank,
      .token = next_token_++,
      .sequence = sequence,
      .exact = spec.reduce_scatter == LatePolicy::kWait && spec.all_gather == LatePolicy::kWait &&
               spec.element_type == ElementType::kFloat32 && !Rounds(spec),
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
  const Status status = endpoint(rank).Submit(now_, std::move(submission));
  if (status.ok()) return;
  ++failed_;
  calls_.pop_back();
}

void Ranks::Deliver(const Sent& sent) { Deliver(sent.to, sent.datagram); }

void Ranks::Deliver(std::uint16_t to, std::span<const std::byte> datagram) {
  if (silent_[to]) return;
  // Memory of exactly this size, so that a sanitizer sees a read beyond it.
  const Bytes exact(datagram.begin(), datagram.end());
  endpoint(to).HandleDatagram(now_, exact);
}

void Ranks::Poll() {
  for (std::uint16_t rank = 0; rank < size(); ++rank) {
    if (silent_[rank]) continue;
    for (int i = 0; i < kTransmitsPerTurn; ++i) {
      const auto transmit = endpoint(rank).PollTransmit(now_, buffer_, kBatchMax);
      if (!transmit) break;
      Bytes sent;
      Join(transmit->pieces, sent);
      for (std::size_t at = 0; at < sent.size(); at += transmit->datagram_bytes) {
        const auto one =
            std::span(sent).subspan(at, std::min(transmit->datagram_bytes, sent.size() - at));
        wire_.push_back(
            {.from = rank, .to = transmit->to.value(), .datagram = Bytes(one.begin(), one.end())});
      }
    }
    while (const auto done = endpoint(rank).PollEvent()) Finish(rank, *done);
  }
}

void Ranks::Advance(Duration by) {
  now_ += by;
  for (std::uint16_t rank = 0; rank < size(); ++rank) {
    if (!silent_[rank]) endpoint(rank).HandleTimeout(now_);
  }
}

void Ranks::Finish(std::uint16_t rank, const CallDone& done) {
  const auto call = std::ranges::find(calls_, done.token, &Call::token);
  OR_CHECK(call != calls_.end() && call->rank == rank);
  ++(done.status.ok() ? completed_ : failed_);
  if (done.status.ok() && call->exact) {
    for (std::size_t i = 0; i < call->values.size(); ++i) {
      float sum = 0;
      for (std::uint16_t r = 0; r < size(); ++r) sum += ContributionOf(r, call->sequence, i);
      if (call->values[i] == sum) continue;
      ++wrong_sums_;
      break;
    }
  }
  calls_.erase(call);
}

Bytes Ranks::Seal(std::uint16_t from, std::uint16_t to, Bytes datagram) const {
  OR_CHECK(datagram.size() >= kOverheadBytes);
  const std::size_t content_bytes = datagram.size() - kTagBytes;
  const std::span<std::byte> payload =
      std::span(datagram).first(content_bytes).subspan(kHeaderBytes);
  SealerOf(options_, from, to)
      .Seal(NumberOf(datagram), std::span(datagram).first(kHeaderBytes), payload, payload,
            std::span(datagram).subspan(content_bytes).first<kTagBytes>());
  return datagram;
}

Bytes Ranks::Open(const Sent& sent) const {
  const std::span<const std::byte> datagram(sent.datagram);
  const std::size_t content_bytes = datagram.size() - kTagBytes;
  Bytes scratch(datagram.size());
  const auto payload = SealerOf(options_, sent.from, sent.to)
                           .Open(NumberOf(datagram), datagram.first(content_bytes), kHeaderBytes,
                                 datagram.subspan(content_bytes).first<kTagBytes>(), scratch);
  OR_CHECK(payload.has_value());
  Bytes readable = sent.datagram;
  std::ranges::copy(*payload, readable.begin() + kHeaderBytes);
  return readable;
}

}  // namespace optireduce
