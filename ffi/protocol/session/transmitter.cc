#include "ffi/protocol/session/transmitter.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Segments that are still to come from all others; nothing while one of them is not in the call.
std::optional<double> MissingIn(const Exchange& exchange) {
  if (!exchange.program().running()) return std::nullopt;
  std::size_t missing = 0;
  for (const MemberIndex member : exchange.collective().others) {
    if (!exchange.heard(member)) return std::nullopt;
    missing += exchange.all_gather().NotReceived(member);
    const ReduceScatterStage& stage = exchange.reduce_scatter();
    if (stage.Awaits(member)) missing += stage.NotReceived(member);
  }
  return static_cast<double>(missing);
}

}  // namespace

Transmitter::Transmitter(SessionState& session, const Refusals& refusals, LagMonitor& lag)
    : options_(session.options),
      peers_(session.peers),
      calls_(session.calls),
      directory_(session.directory),
      counters_(session.counters),
      refusals_(refusals),
      lag_(lag),
      next_peer_(options_.rank),
      incast_(static_cast<std::uint8_t>(std::clamp(options_.world_size - 1, 1, UINT8_MAX))) {}

void Transmitter::Queue(OpenCall& active, MemberIndex to) {
  if (active.queued[to.index()] || to == active.exchange.collective().self) return;
  Peer& other = peers_.Touch(active.exchange.collective().RankOf(to));
  if (other.gone()) return;
  active.queued[to.index()] = true;
  (active.exchange.behind() ? other.backlog : other.ready).push_back(active.exchange.call());
}

void Transmitter::QueueAll(OpenCall& active) {
  for (std::uint16_t m = 0; m < active.queued.size(); ++m) Queue(active, MemberIndex(m));
}

void Transmitter::QueueRefused(CollectiveId id, Rank to) {
  calls_.ForEach(id, [&](CallId, OpenCall& active) {
    if (const auto member = active.exchange.collective().MemberOf(to)) Queue(active, *member);
  });
}

void Transmitter::AskRefused(Instant now, Rank to) {
  Peer& other = peers_.Touch(to);
  for (const CallId call : other.refused_calls.PopExpired(now)) QueueRefused(call.collective, to);
  if (!other.refused_calls.PopAsk(now)) return;
  bool needed = false;
  for (const CallId& first : other.refused_calls.listed()) {
    calls_.ForEach(first.collective,
                   [&](CallId call, const OpenCall&) { needed = needed || call >= first; });
  }
  if (!needed) return;
  // One more probe would put off those that show a silence.
  if (!other.flow.awaits_acknowledgement()) other.control.push_back({.kind = DatagramKind::kProbe});
  other.refused_calls.Ask(now);
}

void Transmitter::Announce(const Collective& collective, Sequence sequence) {
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || peers_.Touch(member).gone()) continue;
    peers_.Touch(member).control.push_back(
        {.kind = DatagramKind::kAnnouncement,
         .call = {.collective = collective.id, .sequence = sequence},
         .segment = {}});
  }
}

void Transmitter::Leave(const Status& why) {
  leaving_ = why.message();
  for (Peer& peer : peers_.others()) peer.farewell = Peer::Farewell::kWanted;
}

std::optional<Transmit> Transmitter::Poll(Instant now, bool stuck, std::span<std::byte> buffer,
                                          std::size_t batch_max) {
  pieces_.clear();
  if (leaving_) QueueFarewells();
  const std::size_t first = next_peer_.index();
  const std::size_t ranks = peers_.size();
  // The peers from the first one on come before the others.
  for (const auto& [from, end] : {std::pair(first, ranks), std::pair(std::size_t{0}, first)}) {
    const auto next = [&, end = end](std::size_t at) {
      return std::min(peers_.NextToSend(now, at), end);
    };
    for (std::size_t r = next(from); r < end; r = next(r + 1)) {
      const Rank to(static_cast<std::uint16_t>(r));
      if (const auto transmit = PollPeer(now, stuck, to, buffer, batch_max)) {
        next_peer_ = Rank(static_cast<std::uint16_t>((r + 1) % ranks));
        return transmit;
      }
      peers_.RecordQuiet(to);
    }
  }
  return std::nullopt;
}

Transmit Transmitter::SealMembership(Rank to, std::size_t payload_bytes,
                                     std::span<std::byte> buffer) {
  pieces_.clear();
  Header header;
  header.kind = DatagramKind::kMembership;
  for (const Peer& peer : peers_.others()) {
    if (!peer.black_hole) continue;
    const auto hole = peer.flow.lengths().Find(options_.peer_timeout);
    if (!hole) continue;
    header.segment = SegmentIndex(static_cast<std::uint32_t>(hole->lost_bytes << 16) |
                                  static_cast<std::uint32_t>(hole->delivered_bytes));
    header.sender_info = peer.rank.value();
    break;
  }
  header.number = peers_.Touch(to).flow.Untracked();
  return SealOne(to, header, payload_bytes, buffer);
}

std::optional<Transmit> Transmitter::PollPeer(Instant now, bool stuck, Rank to,
                                              std::span<std::byte> buffer, std::size_t batch_max) {
  Peer& other = peers_.Touch(to);
  if (other.flow.received().AcknowledgementDue(now)) return SendAcknowledgement(now, to, buffer);
  if (other.gone() || other.muted(stuck)) return std::nullopt;
  std::optional<Transmit> transmit;
  // Segments that wait for room make a probe due.
  if ((other.control.empty() && !other.flow.probe_due()) || !other.flow.CanTrack()) {
    transmit = SendSegments(now, to, buffer, batch_max);
  }
  if (!transmit && other.flow.PopProbe()) other.control.push_front({.kind = DatagramKind::kProbe});
  if (!transmit && !other.control.empty() && other.flow.CanTrack()) {
    transmit = SendControl(now, to, buffer);
  }
  if (transmit && other.asked <= other.last_heard) other.asked = now;
  return transmit;
}

void Transmitter::Seal(Rank to, Header header, std::span<const std::byte> payload,
                       std::span<std::byte> datagram) {
  header.source = options_.rank;
  header.session = options_.session;
  const auto head = datagram.first<kHeaderBytes>();
  const auto tag = datagram.last<kTagBytes>();
  EncodeHeader(header, head);
  Peer& other = peers_.Touch(to);
  const std::span<std::byte> encrypted = datagram.subspan(kHeaderBytes, payload.size());
  for (const std::span<const std::byte> piece :
       {std::span<const std::byte>(head),
        other.seal.Seal(header.number, head, payload, encrypted, tag),
        std::span<const std::byte>(tag)}) {
    // Adjacent pieces are joined.
    if (!pieces_.empty() && pieces_.back().data() + pieces_.back().size() == piece.data()) {
      pieces_.back() = {pieces_.back().data(), pieces_.back().size() + piece.size()};
    } else if (!piece.empty()) {
      pieces_.push_back(piece);
    }
  }
  ++counters_.datagrams_sent;
  counters_.bytes_sent += datagram.size();
  other.traffic.bytes_sent += datagram.size();
  other.traffic.segments_sent += IsSegment(header.kind) ? 1 : 0;
}

Transmit Transmitter::SealOne(Rank to, const Header& header, std::size_t payload_bytes,
                              std::span<std::byte> buffer) {
  const std::size_t bytes = kOverheadBytes + payload_bytes;
  Seal(to, header, buffer.subspan(kHeaderBytes, payload_bytes), buffer.first(bytes));
  return {.to = to, .pieces = pieces_, .bytes = bytes, .datagram_bytes = bytes};
}

std::optional<Transmit> Transmitter::SendAcknowledgement(Instant now, Rank to,
                                                         std::span<std::byte> buffer) {
  Flow& flow = peers_.Touch(to).flow;
  Acknowledgement acknowledgement = flow.received().MakeAcknowledgement(now);
  acknowledgement.incast = incast_.incast();
  if (!refusals_.empty()) acknowledgement.refusals = refusals_.Of(to);
  const std::size_t payload_bytes = EncodeAcknowledgement(
      acknowledgement, buffer.first(options_.datagram_bytes_max - kTagBytes).subspan(kHeaderBytes));
  Header header;
  header.kind = DatagramKind::kAcknowledgement;
  header.number = flow.Untracked();
  return SealOne(to, header, payload_bytes, buffer);
}

std::optional<Transmit> Transmitter::SendControl(Instant now, Rank to,
                                                 std::span<std::byte> buffer) {
  Peer& other = peers_.Touch(to);
  const SentInfo info = other.control.front();
  other.control.pop_front();
  const std::span<std::byte> payload =
      buffer.first(options_.datagram_bytes_max - kTagBytes).subspan(kHeaderBytes);
  std::size_t payload_bytes = 0;
  Header header;
  header.call = info.call;
  if (info.kind == DatagramKind::kGaveUp) {
    payload_bytes = WriteGivenUp(info.call, header, payload);
  } else if (IsAnnouncement(info.kind)) {
    const CollectiveSpec& spec = directory_.Find(info.call.collective)->spec;
    payload_bytes = EncodeAnnouncement(spec, spec.description, payload);
  } else if (info.kind == DatagramKind::kLeave) {
    ByteWriter writer(payload);
    writer.Write(std::string_view(*leaving_).substr(0, payload.size()));
    payload_bytes = writer.size();
    other.farewell = Peer::Farewell::kSent;
  } else {
    ++counters_.probes_sent;
    if ((info.flags & kFlagPadded) != 0) {
      payload_bytes = info.bytes - kOverheadBytes;
      std::ranges::fill(payload.first(payload_bytes), std::byte{0});
    }
  }
  header.kind = info.kind;
  header.flags |= info.flags;
  header.number =
      other.flow.Track(now, info, kOverheadBytes + payload_bytes, kOverheadBytes + payload_bytes);
  return SealOne(to, header, payload_bytes, buffer);
}

std::size_t Transmitter::WriteGivenUp(CallId call, Header& header, std::span<std::byte> payload) {
  const Collective& collective = *directory_.Find(call.collective);
  const GivenUpCalls& ours = collective.given_up.at(collective.self);
  const GivenUpCalls::Interval& calls = *ours.Find(call.sequence);
  header.call.sequence = calls.last;
  header.segment = SegmentIndex(calls.last.value() - calls.first.value());
  const Blame& blame = ours.why().blame();
  const auto blamed =
      std::ranges::find_if(blame.ranks, [this](Rank rank) { return rank != options_.rank; });
  header.flags = static_cast<std::uint8_t>(static_cast<int>(blame.cause) << kCauseShift);
  if (std::ranges::find(blame.ranks, options_.rank) != blame.ranks.end())
    header.flags |= kFlagSenderToo;
  header.sender_info = (blamed == blame.ranks.end() ? options_.rank : *blamed).value();
  return EncodeAnnouncement(collective.spec, ours.why().message(), payload);
}

OpenCall* Transmitter::NextSegment(Instant now, Rank to, Ring<CallId>& calls, Outbox::Item& item) {
  for (std::size_t left = calls.size(); left > 0; --left) {
    const CallId call = calls.front();
    calls.pop_front();
    OpenCall* const open = calls_.Find(call);
    if (open == nullptr) continue;
    const Offer offer = FindOffer(now, to, *open, calls, item);
    if (offer == Offer::kNext) {
      calls.push_front(call);
      return open;
    }
    Peer& peer = peers_.Touch(to);
    open->queued[open->exchange.collective().MemberOf(to)->index()] = offer != Offer::kNone;
    if (offer == Offer::kLater) calls.push_back(call);
    if (offer == Offer::kBacklog) peer.backlog.push_back(call);
  }
  return nullptr;
}

Transmitter::Offer Transmitter::FindOffer(Instant now, Rank to, OpenCall& open,
                                          const Ring<CallId>& calls, Outbox::Item& item) {
  Peer& peer = peers_.Touch(to);
  Exchange& exchange = open.exchange;
  CallSender& sender = exchange.sender();
  const MemberIndex member = *exchange.collective().MemberOf(to);
  const bool refused = peer.refused_calls.Contains(now, exchange.call());
  sender.SetStalled(member, refused || peer.flow.unanswered());
  if (refused) {
    peer.refused_calls.Ask(now);
    return Offer::kNone;
  }
  sender.SetIncast(IncastOf(exchange));
  if (&calls == &peer.ready && exchange.behind()) return Offer::kBacklog;
  auto next = sender.Next(member);
  if (!next && exchange.CloseNext(now, member)) {
    QueueAll(open);
    next = sender.Next(member);
  }
  // Not its turn yet among the `incast`; it stays, behind the others.
  if (!next) return sender.OutOfTurn(member) ? Offer::kLater : Offer::kNone;
  // Segments of other calls may be shorter.
  if (peer.flow.Blocks(now, kOverheadBytes + sender.PayloadBytes(*next))) return Offer::kLater;
  item = *next;
  return Offer::kNext;
}

std::optional<Transmit> Transmitter::SendSegments(Instant now, Rank to, std::span<std::byte> buffer,
                                                  std::size_t batch_max) {
  Peer& peer = peers_.Touch(to);
  // Every eighth turn serves the backlog first, because the peer may refuse newer data until it
  // gets backlog data. While a call of this rank waits for the backlog, seven of eight turns do.
  // Chosen: newer calls keep most of the link.
  constexpr std::uint32_t kBacklogTurns = 8;
  if (peer.ready.empty() && peer.backlog.empty()) return std::nullopt;
  const bool backlog_first = (++peer.turns % kBacklogTurns == 0) != lag_.PutFirst(to);
  for (const bool backlog : {backlog_first, !backlog_first}) {
    auto& calls = backlog ? peer.backlog : peer.ready;
    if (const auto transmit = SendSegmentsOf(now, to, calls, buffer, batch_max)) return transmit;
  }
  return std::nullopt;
}

// A call ends when the last rank has its data. A peer with more to come than others gets more of
// this rank's link, and one that has more left to send gets more of all links, so that all end
// together.
double Transmitter::SendWeight(Rank to) {
  // Chosen: enough to even out what chance does to rates, and within what sockets hold.
  constexpr double kWeightMin = 0.5;
  constexpr double kWeightMax = 2;
  if (batches_left_ == 0) FindMeanUnsent();
  double left = 0;
  for (const auto& [id, active] : calls_) {
    const auto member = active.exchange.collective().MemberOf(to);
    if (member) left += active.exchange.sender().Unsent(*member);
  }
  return mean_unsent_ > 0 ? std::clamp(left / mean_unsent_, kWeightMin, kWeightMax) : 1;
}

void Transmitter::FindMeanUnsent() {
  double left = 0;
  double flows = 0;
  for (const auto& [id, active] : calls_) {
    const Exchange& exchange = active.exchange;
    for (std::uint16_t m = 0; m < active.queued.size(); ++m) {
      const MemberIndex member(m);
      const Rank rank = exchange.collective().RankOf(member);
      if (rank == options_.rank || peers_[rank]->flow.unanswered()) continue;
      left += exchange.sender().Unsent(member);
      ++flows;
    }
    if (const auto missing = MissingIn(exchange)) {
      left += *missing;
      flows += static_cast<double>(active.queued.size() - 1);
    }
  }
  mean_unsent_ = flows > 0 ? left / flows : 0;
  batches_left_ = options_.world_size;
}

void Transmitter::SealSegments(Instant now, Rank to, Exchange& exchange, const CallSender::Run& run,
                               std::size_t batch_bytes, std::span<std::byte> datagram) {
  CallSender& sender = exchange.sender();
  const MemberIndex member = *exchange.collective().MemberOf(to);
  const std::span<const std::byte> payload =
      sender.Payload(member, run, datagram.subspan(kHeaderBytes, run.bytes));
  Header header;
  sender.FillHeader(now, exchange.call(), member, run, header);
  const SentInfo info{.kind = run.first.kind,
                      .flags = 0,
                      .segments = run.segments,
                      .call = header.call,
                      .segment = run.first.segment};
  header.number = peers_.Touch(to).flow.Track(now, info, datagram.size(), batch_bytes);
  Seal(to, header, payload, datagram);
  peers_[to]->traffic.segments_sent += run.segments - 1u;
  sender.Sent(member, run);
}

std::optional<Transmit> Transmitter::SendSegmentsOf(Instant now, Rank to, Ring<CallId>& calls,
                                                    std::span<std::byte> buffer,
                                                    std::size_t batch_max) {
  Flow& flow = peers_.Touch(to).flow;
  Transmit batch{.to = to, .pieces = {}};
  Outbox::Item item{};
  for (std::size_t count = 0; count < batch_max; ++count) {
    OpenCall* const open = NextSegment(now, to, calls, item);
    if (open == nullptr) break;
    if (batch.bytes == 0) flow.SetWeight(SendWeight(to));
    const CallSender::Run run = FindRun(now, to, open->exchange, item);
    const std::size_t bytes = kOverheadBytes + run.bytes;
    if (!HasRoom(now, batch, bytes, buffer.size(), flow)) break;
    if (batch.bytes == 0) batch.datagram_bytes = bytes;
    SealSegments(now, to, open->exchange, run, batch.datagram_bytes,
                 buffer.subspan(batch.bytes, bytes));
    batch.bytes += bytes;
    if (bytes < batch.datagram_bytes) break;
  }
  if (batch.bytes == 0) return std::nullopt;
  --batches_left_;
  batch.pieces = pieces_;
  Rotate(calls, item.retransmission);
  return batch;
}

CallSender::Run Transmitter::FindRun(Instant now, Rank to, Exchange& exchange,
                                     const Outbox::Item& first) {
  const MemberIndex member = *exchange.collective().MemberOf(to);
  const std::size_t payload_bytes_max = options_.datagram_bytes_max - kOverheadBytes;
  const CallSender::Run run = exchange.sender().RunFrom(member, first, payload_bytes_max);
  const bool blocked =
      run.segments > 1 && peers_.Touch(to).flow.Blocks(now, kOverheadBytes + run.bytes);
  return blocked ? exchange.sender().RunFrom(member, first, 0) : run;
}

bool Transmitter::HasRoom(Instant now, const Transmit& batch, std::size_t bytes,
                          std::size_t buffer_bytes, Flow& flow) {
  if (batch.bytes + bytes > buffer_bytes) return false;
  if (!flow.CanSend(bytes)) {
    flow.RequestRoom();
    return false;
  }
  if (batch.bytes == 0) return flow.MayStart(now);
  // A batch is cut into equal datagrams; only its last may be shorter.
  return batch.bytes + bytes <= flow.BurstBytes() && bytes <= batch.datagram_bytes;
}

void Transmitter::Rotate(Ring<CallId>& calls, bool retransmission) {
  // A call whose segments are refused for now is retransmitted again and again; the others, one of
  // which may be what the peer waits for, get their turn in between. Then the older calls of a
  // collective come first again: a peer cannot go on without them.
  if (retransmission && !calls.empty()) {
    calls.push_back(calls.front());
    calls.pop_front();
    return;
  }
  for (std::size_t i = 1; i < calls.size(); ++i) {
    CallId& first = calls.front();
    const bool same = calls[i].collective == first.collective;
    if (same && calls[i].sequence < first.sequence) std::swap(calls[i], first);
  }
}

void Transmitter::AdaptIncast() {
  std::uint64_t expected = 0;
  std::uint64_t recorded = 0;
  for (const Peer& peer : peers_.others()) {
    expected += peer.flow.received().expected();
    recorded += peer.flow.received().recorded();
  }
  const std::uint64_t sent = expected - incast_seen_.expected;
  const std::uint64_t arrived = recorded - incast_seen_.recorded;
  // More have arrived than were sent where some of an earlier call were late.
  incast_.HandleCall(sent, sent - std::min(arrived, sent));
  incast_seen_ = {.expected = expected, .recorded = recorded};
}

std::uint16_t Transmitter::IncastOf(const Exchange& exchange) {
  if (options_.incast != 0) return options_.incast;
  if (!exchange.policy().LosesLate()) return UINT16_MAX;
  if (incast_of_peers_) return *incast_of_peers_;
  std::uint8_t least = UINT8_MAX;
  for (const Peer& peer : peers_.others()) {
    if (!peer.gone()) least = std::min(least, peer.incast);
  }
  incast_of_peers_ = least == UINT8_MAX ? UINT16_MAX : least;
  return *incast_of_peers_;
}

void Transmitter::QueueFarewells() {
  for (Peer& peer : peers_.others()) {
    if (peer.farewell != Peer::Farewell::kWanted) continue;
    // Sums that the peer lacks come first: without them its call fails. A peer that does not answer
    // may have been cut off for a moment; it is asked until it is given up. Sums in datagrams too
    // long for the path never arrive.
    const bool lacks_sums = std::ranges::any_of(calls_, [&](const auto& entry) {
      const Exchange& exchange = entry.second.exchange;
      const auto member = exchange.collective().MemberOf(peer.rank);
      return member && exchange.program().over() && !exchange.sender().Served(*member);
    });
    if (lacks_sums && !peer.unreachable() && !peer.black_hole) continue;
    peer.farewell = Peer::Farewell::kSent;
    peers_.Touch(peer.rank).control.push_back({.kind = DatagramKind::kLeave});
  }
}

}  // namespace optireduce
