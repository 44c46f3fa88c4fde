#include "ffi/protocol/endpoint.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/protocol/endpoint_impl.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Chosen: an announcement with its members and the longest name still fits the smallest datagram.
constexpr std::size_t kNameBytesMax = 200;
// Source: RFC 791 has every host take 576 bytes; less 28 for IPv4 and UDP.
constexpr std::size_t kDatagramBytesMin = 548;
// Source: the largest UDP payload over IPv4, 65,535 - 28.
constexpr std::size_t kDatagramBytesMax = 65507;
// Chosen: the announcement's bitmap of members stays within 128 bytes.
constexpr std::uint16_t kWorldSizeMax = 1024;

Status Invalid(std::string message) {
  return {StatusCode::kInvalidArgument, "jax_optireduce: " + std::move(message)};
}

Acknowledge WhenToAcknowledge(const Header& header) {
  switch (header.kind) {
    case DatagramKind::kAcknowledgement:
    case DatagramKind::kMembership:
      return Acknowledge::kNot;
    case DatagramKind::kProbe:
      return Acknowledge::kAtOnce;
    default:
      return Acknowledge::kSoon;
  }
}

}  // namespace

Endpoint::Impl::Impl(const EndpointOptions& options)
    : options_(options),
      peers_(options.rank, options.world_size),
      sharers_(options.world_size),
      opened_(options.protection == Protection::kEncrypt ? options.datagram_bytes_max : 0),
      directory_(options),
      lag_(options.peer_timeout, peers_, calls_),
      transmitter_({.options = options_,
                    .peers = peers_,
                    .calls = calls_,
                    .directory = directory_,
                    .refusals = refusals_,
                    .lag = lag_,
                    .counters = counters_}),
      membership_(MakeMembership(options)),
      mismatch_(options_, peers_, calls_, directory_, membership_.get()) {
  if (membership_ && options.membership) lane_ = options.lane;
  View& all = views_.emplace_back();
  for (std::uint16_t r = 0; r < options.world_size; ++r) all.members.emplace_back(r);
}

Status Endpoint::Impl::MakePeers() {
  const std::size_t others = std::max<std::size_t>(options_.world_size - 1u, 1);
  FlowOptions flow{
      .datagram_bytes_max = options_.datagram_bytes_max,
      .sharers = others,
      .paths = &paths_,
  };
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    const Rank rank(r);
    if (rank == options_.rank) continue;
    Result<Sealer> seal = DirectionSealer(options_, options_.rank, rank);
    Result<Sealer> open = DirectionSealer(options_, rank, options_.rank);
    if (!seal.ok()) return seal.status();
    if (!open.ok()) return open.status();
    flow.same_host = IsOnThisHost(rank);
    flow.window_bytes_max = WindowBytesMax(rank, others);
    peers_.Add(rank,
               std::make_unique<Peer>(flow, std::move(seal.value()), std::move(open.value())));
  }
  return {};
}

std::size_t Endpoint::Impl::WindowBytesMax(Rank to, std::size_t sharers) const {
  // Half of the buffer: the kernel charges each datagram more than its payload. All of it where
  // batches arrive whole: the kernel holds twice what it has promised.
  return options_.receive_buffer_bytes / (IsOnThisHost(to) ? 1 : 2) / sharers;
}

void Endpoint::Impl::ShareWindows(const CollectiveSpec& spec) {
  const std::size_t before = sharers_.count();
  for (const Rank member : spec.members) {
    if (member != options_.rank) sharers_.Insert(member.index());
  }
  const std::size_t sharers = sharers_.count();
  if (sharers == before) return;
  for (std::uint16_t r = 0; r < options_.world_size; ++r) {
    if (!peers_[r]) continue;
    peer(Rank(r)).flow.SetSharers(sharers, WindowBytesMax(Rank(r), sharers));
  }
}

// ---- The local program.

Status Endpoint::Impl::Validate(const CollectiveSpec& spec) const {
  if (leaving_) return *leaving_;
  if (removed_) return *removed_;
  if (spec.name.size() > kNameBytesMax) {
    return Invalid("the name of a collective may have " + std::to_string(kNameBytesMax) +
                   " bytes, got " + std::to_string(spec.name.size()));
  }
  const bool ascending =
      std::ranges::adjacent_find(spec.members, std::greater_equal<>()) == spec.members.end();
  if (spec.members.empty() || !ascending || spec.members.back().value() >= options_.world_size ||
      !MemberOf(spec, options_.rank)) {
    return Invalid("the members of '" + spec.name +
                   "' must be ascending ranks of this session and contain this rank");
  }
  if (!HasMode(spec)) {
    return Invalid("'" + spec.name +
                   "' must have the policies of a mode (exact: wait, wait; agreed: defer, wait; "
                   "bounded: defer, defer; lossy: drop, drop), and positive deadlines unless it "
                   "waits in both stages");
  }
  if (Rounds(spec) && spec.element_type != ElementType::kFloat32) {
    return Invalid("'" + spec.name + "' is " + std::string(NameOf(spec.element_type)) +
                   ", and only float32 is rounded to wire_format=\"" +
                   std::string(NameOf(spec.wire_format)) + "\"; leave it out");
  }
  if (spec.element_type == ElementType::kInt32 && spec.reduce_scatter == LatePolicy::kDrop) {
    return Invalid("'" + spec.name +
                   "' drops what is late and rescales the sum, which integers do not allow; use "
                   "mode=\"exact\"");
  }
  return {};
}

Status Endpoint::Impl::ValidateLeaves(const Submission& submission) const {
  const CollectiveSpec& spec = submission.spec;
  std::uint64_t elements = 0;
  for (const Leaf& leaf : submission.leaves) elements += leaf.elements;
  if (elements == spec.elements) return {};
  return Invalid("'" + spec.name + "' has " + std::to_string(spec.elements) +
                 " elements, but its leaves have " + std::to_string(elements));
}

Status Endpoint::Impl::Submit(Instant now, Submission submission) {
  if (Status status = Validate(submission.spec); !status.ok()) return status;
  if (Status status = ValidateLeaves(submission); !status.ok()) return status;
  Result<Collective*> learnt = Learn(now, submission.spec);
  if (!learnt.ok()) return learnt.status();
  Collective& collective = *learnt.value();
  const Sequence sequence = submission.sequence;
  if (collective.accepted && sequence <= *collective.accepted) {
    return Invalid("the calls of a collective must have growing numbers (step=): got " +
                   Describe(submission.spec, sequence) + " after call " +
                   std::to_string(collective.accepted->value()) +
                   "; use another name= to start again");
  }
  if (sequence == kFinalDrain) {
    return Invalid("the number of a call (step=) must be below " +
                   std::to_string(kFinalDrain.value()));
  }
  const bool survives = Survives(collective.spec);
  if (!survives) {
    if (Status status = RefuseUnreachable(collective, submission); !status.ok()) {
      // Others may reach the one that this rank does not.
      GiveUp(now, std::move(submission), status);
      return status;
    }
  } else if (membership_->facts().stuck) {
    const Status why = WhyStuck(now);
    ReleaseLost(now);
    // For the next attempt.
    membership_->Open()->Retry(now);
    return why;
  }
  collective.accepted = sequence;
  if (!survives) {
    Begin(now, collective, std::move(submission));
    return {};
  }
  held_.push_back({.submission = std::move(submission), .since = now, .given_up = {}});
  GoOn(now);
  if (!held_.empty()) next_tick_ = std::min(next_tick_, now);
  return {};
}

void Endpoint::Impl::Leave(Instant now, const Status& why) {
  if (leaving_) return;
  OR_CHECK(!why.ok());
  leaving_ = why;
  Cancel(now, why);
  transmitter_.Leave(why);
}

bool Endpoint::Impl::finished() const {
  return leaving_ && std::ranges::all_of(peers_, [](const auto& other) {
           if (!other || other->gone() || other->farewell == Peer::Farewell::kDelivered)
             return true;
           // It has acknowledged, or was given up on, all other data; delivery of the farewell is
           // best effort.
           return other->farewell == Peer::Farewell::kSent && other->flow.unanswered();
         });
}

std::optional<Transmit> Endpoint::Impl::PollTransmit(Instant now, std::span<std::byte> buffer,
                                                     std::size_t batch_max) {
  OR_CHECK(buffer.size() >= options_.datagram_bytes_max && batch_max > 0);
  LiftRefusals(now);
  if (const auto transmit = SendMembership(now, buffer)) return transmit;
  return transmitter_.Poll(now, IsStuck(), buffer, batch_max);
}

std::optional<CallDone> Endpoint::Impl::PollEvent() {
  if (events_.empty()) return std::nullopt;
  CallDone done = std::move(events_.front());
  events_.pop_front();
  return done;
}

// ---- Datagrams.

void Endpoint::Impl::HandleDatagram(Instant now, std::span<const std::byte> datagram) {
  if (datagram.size() > options_.datagram_bytes_max) {
    ++counters_.rejected_oversized;
    return;
  }
  const ParsedHeader parsed = ParseHeader(datagram);
  if (!parsed.header) {
    ++(parsed.error == ParseError::kVersion ? counters_.rejected_version
                                            : counters_.rejected_malformed);
    return;
  }
  const Header& header = *parsed.header;
  if (header.session != options_.session || header.source.value() >= options_.world_size ||
      header.source == options_.rank) {
    ++counters_.rejected_foreign;
    return;
  }
  Peer& from = peer(header.source);
  const std::size_t content_bytes = datagram.size() - kTagBytes;
  const auto payload = from.open.Open(header.number, datagram.first(content_bytes), kHeaderBytes,
                                      datagram.subspan(content_bytes).first<kTagBytes>(), opened_);
  if (!payload) {
    ++counters_.rejected_unauthenticated;
    return;
  }
  if (from.flow.Seen(header.number)) {
    ++counters_.rejected_replayed;
    return;
  }
  HearMember(now, header, *payload);
  if (from.removed) {
    ++counters_.rejected_removed;
    from.flow.Record(now, header.number, Acknowledge::kNot, /*refused=*/true);
    return;
  }
  from.Heard(now, options_.peer_timeout);
  // What is heard of a peer to which data does not pass changes nothing.
  if (from.lost && !from.black_hole) {
    transmitter_.NoteIncastOfPeers();
    from.lost.reset();
  }
  const bool taken = Dispatch(now, header, *payload);
  from.flow.Record(now, header.number, WhenToAcknowledge(header), !taken);
  if (!taken) return;
  if (Agrees()) GoOn(now);
  ++counters_.datagrams_received;
  counters_.bytes_received += datagram.size();
}

bool Endpoint::Impl::Dispatch(Instant now, const Header& header,
                              std::span<const std::byte> payload) {
  switch (header.kind) {
    case DatagramKind::kContribution:
    case DatagramKind::kResult:
      return HandleSegment(now, header, payload);
    case DatagramKind::kAnnouncement:
      return HandleAnnouncement(now, header, payload);
    case DatagramKind::kAcknowledgement:
      HandleAcknowledgement(now, header, payload);
      return true;
    case DatagramKind::kLeave:
      HandleLeave(now, header, payload);
      return true;
    case DatagramKind::kProbe:
      refusals_stale_ = true;
      return true;
    case DatagramKind::kMembership:
      return true;
  }
  FailCheck("known datagram kind", __FILE__, __LINE__);
}

bool Endpoint::Impl::HandleSegment(Instant now, const Header& header,
                                   std::span<const std::byte> encoded) {
  Collective* const collective = directory_.Find(header.call.collective);
  if (collective == nullptr) {
    // Its announcement is still under way.
    Refuse(now, header);
    return false;
  }
  const std::optional<MemberIndex> from = collective->MemberOf(header.source);
  if (!from) {
    ++counters_.rejected_mismatched;
    return false;
  }
  const auto values = SegmentCodec::Decode(*collective, header, encoded, decoded_);
  if (!values) {
    ++counters_.rejected_mismatched;
    return false;
  }
  NoteAttendance(now, *collective, *from, header.call.sequence);
  if (header.kind == DatagramKind::kContribution) {
    collective->NoteCalled(now, *from, header.call.sequence);
  }
  return HandleValues(now, *collective, *from, header, *values);
}

bool Endpoint::Impl::HandleValues(Instant now, const Collective& collective, MemberIndex from,
                                  const Header& header, std::span<const std::byte> payload) {
  const bool contribution = header.kind == DatagramKind::kContribution;
  if (IsOver(collective, header.call.sequence)) {
    CountOld(LateRules::HandleOver(now, collective, from, header, payload));
    return true;
  }
  if (IsAbandoned(collective)) {
    ++counters_.segments_stale;
    return true;
  }
  OpenCall* active = Admit(now, header);
  if (active == nullptr || (!contribution && !HasRoom(active->exchange.EarlyResultBytes()))) {
    Refuse(now, header);
    return false;
  }
  Exchange& exchange = active->exchange;
  if ((header.flags & kFlagDrain) != 0 && collective.deferred) exchange.Drain();
  const bool first = !exchange.heard(from);
  const bool delivered = exchange.sender().ContributionsDelivered(from);
  const std::size_t results = exchange.sums();
  const Receipt receipt = exchange.Handle(now, from, header, payload);
  if (receipt != Receipt::kNew) {
    CountOld(receipt);
    return receipt != Receipt::kMismatched;
  }
  if (exchange.sums() != results) transmitter_.QueueAll(*active);
  // A peer in the same call of the same name with other facts disagrees with the local program.
  if (first && !exchange.submitted()) {
    Apply(now, mismatch_.FindMismatched(collective.spec.name, header.call.sequence));
  }
  const bool completes = exchange.sender().ContributionsDelivered(from) != delivered;
  FinishIfComplete(now, *active);
  if (completes) Advance(now, collective.id, header.source);
  if (contribution && first) ReleaseEarlier(now, header);
  return true;
}

bool Endpoint::Impl::HandleAnnouncement(Instant now, const Header& header,
                                        std::span<const std::byte> payload) {
  std::optional<CollectiveSpec> spec = ParseAnnouncement(payload, options_.world_size);
  if (!spec || IdOf(*spec) != header.call.collective || spec->name.size() > kNameBytesMax) {
    ++counters_.rejected_malformed;
    return false;
  }
  const std::optional<MemberIndex> from = MemberOf(*spec, header.source);
  if (!from || !MemberOf(*spec, options_.rank)) {
    ++counters_.rejected_mismatched;
    return false;
  }
  const bool gave_up = (header.flags & kFlagGaveUp) != 0;
  const Sequence sequence = header.call.sequence;
  if (gave_up && (header.segment.value() > sequence.value() || sequence == kFinalDrain)) {
    ++counters_.rejected_malformed;
    return false;
  }
  // Why it was given up stands where the description would.
  const std::string why = gave_up ? std::exchange(spec->description, "") : "";
  Result<Collective*> learnt = Learn(now, *spec);
  if (!learnt.ok()) {
    ++counters_.rejected_mismatched;
    return false;
  }
  Collective& collective = *learnt.value();
  if (gave_up) {
    Apply(now, mismatch_.HandleGivenUp(now, header, collective, why));
    return true;
  }
  collective.NoteCalled(now, *from, sequence);
  auto& announced = collective.announced_at[from->index()];
  if (!announced) announced = {.at = now, .sequence = header.call.sequence};
  if (header.flags & kFlagWaiting) mismatch_.HandleReport(now, header.source, header.call);
  NoteAttendance(now, collective, *from, header.call.sequence);
  if (auto* const open = calls_.Find(header.call); open != nullptr) {
    open->exchange.Heard(*from);
  }
  Apply(now, mismatch_.FindMismatched(collective.spec.name, sequence));
  return true;
}

void Endpoint::Impl::HandleAcknowledgement(Instant now, const Header& header,
                                           std::span<const std::byte> payload) {
  const std::optional<Acknowledgement> news = ParseAcknowledgement(payload);
  if (!news) {
    ++counters_.rejected_malformed;
    return;
  }
  Peer& from = peer(header.source);
  if (news->incast > 0 && news->incast != from.incast) {
    from.incast = news->incast;
    transmitter_.NoteIncastOfPeers();
  }
  for (const CollectiveId lifted : from.holds.Update(now, header.number, news->refusals)) {
    transmitter_.QueueHeld(lifted, header.source);
  }
  HandleFates(now, header.source, from.flow.HandleAcknowledgement(now, *news));
  CheckPath(now, header.source);
}

void Endpoint::Impl::HandleLeave(Instant now, const Header& header,
                                 std::span<const std::byte> payload) {
  Peer& from = peer(header.source);
  from.left = "rank " + std::to_string(header.source.value()) + " has left: " +
              std::string(reinterpret_cast<const char*>(payload.data()), payload.size());
  Forget(now, header.source);
}

void Endpoint::Impl::HandleFates(Instant now, Rank to, const std::vector<Delivery>& deliveries) {
  Peer& other = peer(to);
  std::vector<CollectiveId> advanced;
  for (const Delivery& delivery : deliveries) {
    const SentInfo& info = delivery.info;
    const bool lost = delivery.outcome == Delivery::Outcome::kLost;
    if (info.kind == DatagramKind::kLeave) {
      other.farewell = lost ? Peer::Farewell::kWanted : Peer::Farewell::kDelivered;
    } else if (info.kind == DatagramKind::kAnnouncement) {
      // What a rank waits in is reported again anyway. One that is refused is never taken.
      if (lost && info.flags != kFlagWaiting && !other.gone()) other.control.push_back(info);
    } else if (info.kind != DatagramKind::kProbe) {
      HandleFate(now, to, delivery, advanced);
    }
  }
  for (const CollectiveId collective : advanced) Advance(now, collective, to);
}

void Endpoint::Impl::HandleFate(Instant now, Rank to, const Delivery& delivery,
                                std::vector<CollectiveId>& advanced) {
  const SentInfo& info = delivery.info;
  const bool refused = delivery.outcome == Delivery::Outcome::kRefused;
  Holds& holds = peer(to).holds;
  if (refused) holds.Refused(now, info.call);
  if (delivery.outcome == Delivery::Outcome::kDelivered) holds.Delivered(info.call);
  auto* const open = calls_.Find(info.call);
  if (open == nullptr) return;
  Exchange& exchange = open->exchange;
  const MemberIndex member = *exchange.collective().MemberOf(to);
  const Outbox::Item item{.kind = info.kind, .segment = info.segment, .retransmission = true};
  if (delivery.outcome == Delivery::Outcome::kDelivered) {
    if (exchange.sender().HandleDelivery(member, item)) advanced.push_back(info.call.collective);
  } else if (exchange.HandleLoss(member, item, refused) == CallSender::Retransmission::kAgain) {
    ++(refused ? counters_.segments_refused : counters_.segments_retransmitted);
    transmitter_.Queue(*open, member);
  } else {
    ++counters_.segments_abandoned;
  }
  EraseIfRemovable(info.call);
}

void Endpoint::Impl::FinishIfComplete(Instant now, OpenCall& active) {
  Exchange& exchange = active.exchange;
  if (!exchange.complete()) {
    if (exchange.WaitsForLag()) lag_.Add(exchange.call());
    return;
  }
  if (exchange.call().sequence == kFinalDrain) {
    exchange.Finish(now, {});
    EndFinalDrain(active);
    transmitter_.QueueAll(active);
    EraseIfRemovable(exchange.call());
    return;
  }
  Status status = mismatch_.FindDropped(now, exchange);
  ++(status.ok() ? counters_.calls_completed : counters_.calls_failed);
  events_.push_back(exchange.Finish(now, std::move(status)));
  if (Drops(exchange.collective().spec) && !exchange.passed()) {
    directory_.Find(exchange.call().collective)->attendance.EndCall(exchange.heard());
  }
  // What peers do not have yet is sent to them although the call is over.
  if (exchange.collective().deferred) transmitter_.QueueAll(active);
  transmitter_.AdaptIncast();
  EraseIfRemovable(exchange.call());
}

void Endpoint::Impl::Fail(Instant now, CallId call, Status why) {
  auto* const open = calls_.Find(call);
  OR_CHECK(open != nullptr);
  ++counters_.calls_failed;
  refusals_stale_ = true;
  // Peers that wait in the same call, or will, must not wait for this rank.
  Exchange& exchange = open->exchange;
  // Where they go on without it they learn that it leaves, and no more.
  const bool missed = !(leaving_ && Survives(exchange.collective().spec));
  if (exchange.waiting() && missed) {
    // Invalid arguments are what Disagreement() reports.
    const bool disagreed = why.code() == StatusCode::kInvalidArgument;
    mismatch_.TellGivenUp(*directory_.Find(call.collective), call.sequence, why.message(),
                          disagreed ? kFlagGaveUp | kFlagDisagreed : kFlagGaveUp);
  }
  events_.push_back(exchange.Finish(now, std::move(why)));
  // Peers that wait for its sums fail with it. Others have them by their deadline.
  if (!exchange.collective().deferred || exchange.waits()) {
    exchange.Remember();
    calls_.Erase(open->exchange.call());
    return;
  }
  transmitter_.QueueAll(*open);
  EraseIfRemovable(call);
}

void Endpoint::Impl::EraseIfRemovable(CallId call) {
  auto* const open = calls_.Find(call);
  if (open == nullptr || !open->exchange.removable()) return;
  refusals_stale_ = true;
  open->exchange.Remember();
  calls_.Erase(open->exchange.call());
}

// ---- The public face.

Endpoint::Endpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Endpoint::~Endpoint() = default;

Result<std::unique_ptr<Endpoint>> Endpoint::Create(const EndpointOptions& options) {
  if (options.world_size == 0 || options.world_size > kWorldSizeMax ||
      options.rank.value() >= options.world_size) {
    return Invalid("the world size must be 1 to " + std::to_string(kWorldSizeMax) +
                   " and the rank below it, got rank " + std::to_string(options.rank.value()) +
                   " of " + std::to_string(options.world_size));
  }
  if (options.datagram_bytes_max < kDatagramBytesMin ||
      options.datagram_bytes_max > kDatagramBytesMax) {
    return Invalid("datagrams must have " + std::to_string(kDatagramBytesMin) + " to " +
                   std::to_string(kDatagramBytesMax) + " bytes, got " +
                   std::to_string(options.datagram_bytes_max));
  }
  auto impl = std::make_unique<Impl>(options);
  if (Status status = impl->MakePeers(); !status.ok()) return status;
  return std::unique_ptr<Endpoint>(new Endpoint(std::move(impl)));
}

Status Endpoint::Submit(Instant now, Submission submission) {
  return impl_->Submit(now, std::move(submission));
}
void Endpoint::HandleDatagram(Instant now, std::span<const std::byte> datagram) {
  impl_->HandleDatagram(now, datagram);
}
void Endpoint::HandleTimeout(Instant now) { impl_->HandleTimeout(now); }
std::optional<Transmit> Endpoint::PollTransmit(Instant now, std::span<std::byte> buffer,
                                               std::size_t batch_max) {
  return impl_->PollTransmit(now, buffer, batch_max);
}
Instant Endpoint::PollTimeout() const { return impl_->PollTimeout(); }
std::optional<CallDone> Endpoint::PollEvent() { return impl_->PollEvent(); }
std::vector<WaitingCall> Endpoint::WaitingCalls(Instant before) const {
  return impl_->WaitingCalls(before);
}
std::vector<LateData> Endpoint::FindLateData() const { return impl_->FindLateData(); }
void Endpoint::Cancel(Instant now, const Status& why) { impl_->Cancel(now, why); }
void Endpoint::GiveUp(Instant now, Submission call, const Status& why) {
  impl_->GiveUp(now, std::move(call), why);
}
void Endpoint::Leave(Instant now, const Status& why) { impl_->Leave(now, why); }
bool Endpoint::finished() const { return impl_->finished(); }
std::size_t Endpoint::memory_bytes() const { return impl_->memory_bytes(); }
std::vector<Rank> Endpoint::live() const { return impl_->live(); }
std::vector<Rank> Endpoint::silent() const { return impl_->silent(); }
std::vector<Rank> Endpoint::unreached() const { return impl_->unreached(); }
const Counters& Endpoint::counters() const { return impl_->counters(); }

}  // namespace optireduce
