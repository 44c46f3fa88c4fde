#include "ffi/protocol/endpoint.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/protocol/session/argument_checks.h"

namespace optireduce {
namespace {

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

// Nothing if the announcement is refused, which is counted.
std::optional<CollectiveSpec> ReadAnnouncement(SessionState& session, const Header& header,
                                               std::span<const std::byte> payload) {
  const EndpointOptions& options = session.options;
  std::optional<CollectiveSpec> spec = ParseAnnouncement(payload, options.world_size);
  const bool gave_up = header.kind == DatagramKind::kGaveUp;
  const Sequence sequence = header.call.sequence;
  if (!spec || IdOf(*spec) != header.call.collective || spec->name.size() > kWireNameBytesMax ||
      (gave_up && header.segment.value() > sequence.value()) ||
      ((gave_up || header.kind == DatagramKind::kDraining) && sequence == kFinalDrain)) {
    ++session.counters.rejected_malformed;
    return std::nullopt;
  }
  if (!MemberOf(*spec, header.source) || !MemberOf(*spec, options.rank)) {
    ++session.counters.rejected_mismatched;
    return std::nullopt;
  }
  return spec;
}

}  // namespace

Endpoint::Endpoint(const EndpointOptions& options, std::shared_ptr<SharedMembership> membership)
    : session_(options),
      opened_(options.protection == Protection::kEncrypt ? options.datagram_bytes_max : 0),
      membership_(session_, std::move(membership)),
      lag_(session_),
      admission_(session_),
      transmitter_(session_, admission_.refusals(), lag_),
      mismatch_(session_, membership_),
      failures_(session_, membership_, admission_, transmitter_),
      waits_(session_),
      lifecycle_(session_, {.membership = membership_,
                            .admission = admission_,
                            .lag = lag_,
                            .transmitter = transmitter_,
                            .mismatch = mismatch_,
                            .waits = waits_}),
      gate_(session_, membership_, lifecycle_, waits_),
      segments_(session_, {.admission = admission_,
                           .lag = lag_,
                           .transmitter = transmitter_,
                           .mismatch = mismatch_,
                           .lifecycle = lifecycle_}),
      deliveries_(session_, transmitter_, lifecycle_) {}

Result<std::unique_ptr<Endpoint>> Endpoint::Create(const EndpointOptions& options,
                                                   std::shared_ptr<SharedMembership> membership) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  std::unique_ptr<Endpoint> endpoint(new Endpoint(options, std::move(membership)));
  if (Status status = endpoint->session_.peers.Connect(); !status.ok()) return status;
  for (const Rank rank : options.absent) endpoint->failures_.MarkRemoved(rank);
  return endpoint;
}

// ---- Calls of the program.

Status Endpoint::Check(const CollectiveSpec& spec) const {
  if (leaving_) return *leaving_;
  if (membership_.removed()) return WhyRemoved();
  return CheckSpec(spec, session_.options);
}

Status Endpoint::WhyRemoved() const {
  const Rank self = session_.options.rank;
  const std::string path = failures_.DescribeNarrowPath(self);
  if (path.empty() || !membership_.removed()) return membership_.WhyRemoved();
  return {StatusCode::kUnavailable,
          "jax_optireduce: this rank, " + std::to_string(self.value()) +
              ", was removed from the session, though the others heard it: " + path + ". " +
              std::to_string(membership_.view().members.size()) +
              " ranks go on without it. Start its process again: jax_optireduce.join() takes its "
              "place in the job",
          {.cause = Cause::kPathTooSmall, .ranks = {self}}};
}

Result<Collective*> Endpoint::FindOrAdd(Instant now, const CollectiveSpec& spec) {
  if (membership_.UseFor(spec)) FollowMembership(now);
  const std::size_t known = session_.directory.size();
  Result<Collective*> found = session_.directory.FindOrAdd(spec);
  if (session_.directory.size() > known) session_.peers.ShareWindows(spec);
  admission_.RecordChange();
  return found;
}

Status Endpoint::WhyUnreachable(const Collective& collective, const Submission& submission) const {
  const Peer* const gone = failures_.FindUnreachable(collective, submission);
  if (gone == nullptr) return {};
  // An error that a member has announced may be the reason why it has left.
  if (Status why = mismatch_.WhyGivenUp(collective, submission.sequence); !why.ok()) return why;
  return {StatusCode::kUnavailable,
          "jax_optireduce: '" + collective.spec.name + "' needs rank " +
              std::to_string(gone->rank.value()) + ", but " + gone->why(),
          gone->blame()};
}

Status Endpoint::Submit(Instant now, Submission submission) {
  if (Status status = Check(submission.spec); !status.ok()) return status;
  if (Status status = CheckLeaves(submission); !status.ok()) return status;
  Result<Collective*> found = FindOrAdd(now, submission.spec);
  if (!found.ok()) return found.status();
  Collective& collective = *found.value();
  if (Status status = CheckSequence(collective, submission); !status.ok()) return status;
  if (!membership_.Survives(collective.spec)) {
    if (Status status = WhyUnreachable(collective, submission); !status.ok()) {
      // Others may reach the member that this rank does not.
      GiveUp(now, std::move(submission), status);
      return status;
    }
    collective.accepted = submission.sequence;
    lifecycle_.Begin(now, collective, std::move(submission));
    return {};
  }
  return SubmitPending(now, collective, std::move(submission));
}

Status Endpoint::SubmitPending(Instant now, Collective& collective, Submission submission) {
  if (membership_.stuck()) {
    const Status why = membership_.WhyStuck(now);
    for (const Rank rank : failures_.GiveUpSuspects()) DropPeer(now, rank);
    membership_.Retry(now);
    return why;
  }
  if (Status status = gate_.Check(submission); !status.ok()) return status;
  collective.accepted = submission.sequence;
  gate_.Add(now, std::move(submission), {});
  StartPendingCalls(now);
  if (!gate_.empty()) waits_.LookAt(now);
  return {};
}

void Endpoint::StartPendingCalls(Instant now) {
  for (bool again = true; again;) {
    const std::uint32_t view = membership_.view().number;
    if (gate_.Start(now)) FollowMembership(now);
    again = membership_.view().number != view;
  }
}

void Endpoint::Cancel(Instant now, const Status& why) {
  FailAll(now, why, /*only_outliving=*/false);
}

bool Endpoint::FailAll(Instant now, const Status& why, bool only_outliving) {
  const bool open = lifecycle_.FailAll(now, why, only_outliving);
  const bool held = gate_.FailAll(now, why);
  // Peers learn otherwise that this rank leaves, or that too few are left to continue.
  if (leaving_ || membership_.removed() || only_outliving) gate_.Clear();
  return open || held;
}

void Endpoint::GiveUp(Instant now, Submission call, const Status& why) {
  OR_CHECK(!why.ok());
  if (!Check(call.spec).ok()) return;
  Result<Collective*> found = FindOrAdd(now, call.spec);
  if (!found.ok() || !CheckSequence(*found.value(), call).ok()) return;
  Collective& collective = *found.value();
  collective.accepted = call.sequence;
  if (!membership_.Survives(collective.spec)) {
    return lifecycle_.GiveUpUncalled(now, collective, call, why);
  }
  call.leaves.clear();
  gate_.Add(now, std::move(call), why);
  StartPendingCalls(now);
}

void Endpoint::Leave(Instant now, const Status& why) {
  if (leaving_) return;
  OR_CHECK(!why.ok());
  leaving_ = why;
  admission_.Leave();
  lifecycle_.Leave();
  Cancel(now, why);
  transmitter_.Leave(why);
}

bool Endpoint::finished() const {
  return leaving_ && std::ranges::all_of(session_.peers.others(), [](const Peer& peer) {
           if (peer.gone() || peer.farewell == Peer::Farewell::kDelivered) return true;
           // It has acknowledged, or was given up on, all other data; delivery of the farewell is
           // best effort.
           return peer.farewell == Peer::Farewell::kSent && peer.flow.unanswered();
         });
}

std::vector<Rank> Endpoint::silent() const {
  return session_.peers.RanksOf(
      [](const Peer& peer) { return !peer.left() && peer.unreachable(); });
}

std::vector<Rank> Endpoint::unreached() const {
  return session_.peers.RanksOf([this](const Peer& peer) {
    return leaving_ && !peer.gone() && peer.farewell != Peer::Farewell::kDelivered;
  });
}

void Endpoint::ProbePaths(std::span<const std::size_t> lengths) {
  for (Peer& peer : session_.peers.others()) {
    if (peer.gone() || peer.probing()) continue;
    Ring<SentInfo>& control = session_.peers.Touch(peer.rank).control;
    if (!peer.answered) control.push_back({.kind = DatagramKind::kProbe});
    for (const std::size_t length : lengths) {
      OR_CHECK(length > kOverheadBytes && length <= session_.options.datagram_bytes_max);
      if (length <= peer.passed_bytes) continue;
      control.push_back({.kind = DatagramKind::kProbe,
                         .flags = kFlagPadded,
                         .bytes = static_cast<std::uint16_t>(length)});
    }
  }
}

std::vector<UnprovenPath> Endpoint::UnprovenPaths() const {
  std::vector<UnprovenPath> paths;
  for (const Peer& peer : session_.peers.others()) {
    if (peer.removed() || peer.passed_bytes == session_.options.datagram_bytes_max) continue;
    paths.push_back({.peer = peer.rank,
                     .heard = peer.last_heard > Instant{},
                     .answered = peer.answered,
                     .passed_bytes = peer.passed_bytes});
  }
  return paths;
}

std::vector<WaitingCall> Endpoint::WaitingCalls(Instant before) const {
  std::vector<WaitingCall> calls;
  for (const auto& [id, open] : session_.calls) {
    const Exchange& exchange = open.exchange;
    if (!exchange.program().running() || exchange.program().submitted_at() >= before) continue;
    if (id.sequence != kFinalDrain) calls.push_back(waits_.WaitingFor(exchange));
  }
  return calls;
}

// ---- Datagrams.

std::optional<Transmit> Endpoint::PollTransmit(Instant now, std::span<std::byte> buffer,
                                               std::size_t batch_max) {
  OR_CHECK(buffer.size() >= session_.options.datagram_bytes_max && batch_max > 0);
  admission_.Lift(now);
  const std::span<std::byte> payload = buffer.subspan(kHeaderBytes).first(kMembershipBytesMax);
  if (const auto message = membership_.Poll(now, payload)) {
    return transmitter_.SealMembership(message->to, message->bytes, buffer);
  }
  return transmitter_.Poll(now, membership_.stuck(), buffer, batch_max);
}

void Endpoint::HandleDatagram(Instant now, std::span<const std::byte> datagram) {
  Counters& counters = session_.counters;
  if (datagram.size() > session_.options.datagram_bytes_max) {
    ++counters.rejected_oversized;
    return;
  }
  const ParsedHeader parsed = ParseHeader(datagram);
  if (!parsed.header) {
    ++(parsed.error == ParseError::kVersion ? counters.rejected_version
                                            : counters.rejected_malformed);
    return;
  }
  const Header& header = *parsed.header;
  if (header.session != session_.options.session ||
      header.source.value() >= session_.options.world_size ||
      header.source == session_.options.rank) {
    ++counters.rejected_foreign;
    return;
  }
  Peer& from = session_.peers.Touch(header.source);
  const std::size_t content_bytes = datagram.size() - kTagBytes;
  const auto payload = from.open.Open(header.number, datagram.first(content_bytes), kHeaderBytes,
                                      datagram.subspan(content_bytes).first<kTagBytes>(), opened_);
  if (!payload) {
    ++counters.rejected_unauthenticated;
    return;
  }
  if (from.flow.received().Contains(header.number)) {
    ++counters.rejected_replayed;
    return;
  }
  HandleAuthentic(now, from, header, *payload, datagram.size());
}

void Endpoint::HandleAuthentic(Instant now, Peer& from, const Header& header,
                               std::span<const std::byte> payload, std::size_t datagram_bytes) {
  if (header.kind == DatagramKind::kMembership) failures_.RecordNarrowPath(header);
  if (membership_.Hear(now, header, payload)) FollowMembership(now);
  if (from.removed()) {
    ++session_.counters.rejected_removed;
    from.flow.received().Record(now, header.number, Acknowledge::kNot, /*refused=*/true);
    return;
  }
  failures_.Heard(now, from);
  const bool taken = Dispatch(now, header, payload);
  from.flow.received().Record(now, header.number, WhenToAcknowledge(header), !taken);
  if (!taken) return;
  if (membership_.in_use()) StartPendingCalls(now);
  ++session_.counters.datagrams_received;
  session_.counters.bytes_received += datagram_bytes;
  from.traffic.bytes_received += datagram_bytes;
}

bool Endpoint::Dispatch(Instant now, const Header& header, std::span<const std::byte> payload) {
  switch (header.kind) {
    case DatagramKind::kContribution:
    case DatagramKind::kResult:
      return segments_.Handle(now, header, payload);
    case DatagramKind::kAnnouncement:
    case DatagramKind::kWaiting:
    case DatagramKind::kGaveUp:
    case DatagramKind::kDraining:
    case DatagramKind::kReturned:
      return HandleAnnouncement(now, header, payload);
    case DatagramKind::kAcknowledgement:
      HandleAcknowledgement(now, header, payload);
      return true;
    case DatagramKind::kLeave:
      failures_.MarkLeft(header.source,
                         {reinterpret_cast<const char*>(payload.data()), payload.size()});
      DropPeer(now, header.source);
      return true;
    case DatagramKind::kProbe:
      admission_.RecordChange();
      return true;
    case DatagramKind::kMembership:
      return true;
  }
  FailCheck("known datagram kind", __FILE__, __LINE__);
}

bool Endpoint::HandleAnnouncement(Instant now, const Header& header,
                                  std::span<const std::byte> payload) {
  std::optional<CollectiveSpec> spec = ReadAnnouncement(session_, header, payload);
  if (!spec) return false;
  // The reason of a call that was given up stands in the place of the description.
  const bool gave_up = header.kind == DatagramKind::kGaveUp;
  const std::string why = gave_up ? std::exchange(spec->description, "") : "";
  Result<Collective*> found = FindOrAdd(now, *spec);
  if (!found.ok()) {
    ++session_.counters.rejected_mismatched;
    if (Collective* const known = session_.directory.Find(header.call.collective)) {
      known->conflict = found.status();
      lifecycle_.Apply(now, mismatch_.FindConflicting(*known));
    }
    return false;
  }
  HandleAnnounced(now, header, *found.value(), why);
  return true;
}

void Endpoint::HandleAnnounced(Instant now, const Header& header, Collective& collective,
                               const std::string& why) {
  if (header.kind == DatagramKind::kGaveUp) {
    if (OutlivesMembers(collective.spec))
      collective.Origin().drain_number.RecordGivenUp(header.call);
    return lifecycle_.Apply(now, mismatch_.HandleGivenUp(now, header, collective, why));
  }
  const Sequence sequence = header.call.sequence;
  if (header.kind == DatagramKind::kDraining) {
    DrainNumber& number = collective.Origin().drain_number;
    number.RecordWaiting(header.source, sequence);
    if ((header.flags & kFlagBegun) != 0) number.RecordBegun(sequence);
    if (collective.presence == nullptr || !number.Waits(header.source)) return;
    collective.presence->RecordDrain(header.source);
    return lifecycle_.SpareAbsent(now);
  }
  const MemberIndex from = *collective.MemberOf(header.source);
  if ((header.flags & kFlagPast) != 0 && header.kind == DatagramKind::kAnnouncement) {
    return lifecycle_.Apply(now,
                            lag_.RecordAttendance(now, collective, from, sequence, /*past=*/true));
  }
  const bool returned = header.kind == DatagramKind::kReturned;
  collective.RecordCalled(now, from, sequence, /*skipped=*/returned);
  if (returned) {
    CallPolicy::RecordReturn(now, collective, from, sequence);
    const bool patient = (header.flags & kFlagPatient) != 0;
    return gate_.HandleReturn(now, collective, from, sequence, patient);
  }
  collective.RecordPresent(from, sequence);
  auto& announced = collective.announced_at[from.index()];
  if (!announced) announced = {.at = now, .sequence = sequence};
  if (header.kind == DatagramKind::kWaiting)
    mismatch_.HandleReport(now, header.source, header.call);
  lifecycle_.Apply(now, lag_.RecordAttendance(now, collective, from, sequence, /*past=*/false));
  if (OpenCall* const open = session_.calls.Find(header.call)) open->exchange.Heard(from);
  lifecycle_.Apply(now, mismatch_.FindMismatched(collective.spec.name, sequence));
}

void Endpoint::HandleAcknowledgement(Instant now, const Header& header,
                                     std::span<const std::byte> payload) {
  const std::optional<Acknowledgement> ack = ParseAcknowledgement(payload);
  if (!ack) {
    ++session_.counters.rejected_malformed;
    return;
  }
  Peer& from = session_.peers.Touch(header.source);
  if (ack->incast > 0 && ack->incast != from.incast) {
    from.incast = ack->incast;
    transmitter_.RecordIncastOfPeers();
  }
  for (const CollectiveId lifted : from.refused_calls.Update(now, header.number, ack->refusals)) {
    transmitter_.QueueRefused(lifted, header.source);
  }
  deliveries_.Handle(now, header.source, from.flow.HandleAcknowledgement(now, *ack));
  CheckPath(now, header.source);
}

// ---- Timers.

void Endpoint::HandleTimeout(Instant now) {
  admission_.RecordChange();
  HandlePeerTimeouts(now);
  lifecycle_.ExpireDue(now);
  lifecycle_.Apply(now, lag_.HandleTimeout(now));
  CheckWaiting(now);
  gate_.HandleTimeout(now);
  if (!membership_.in_use()) return;
  if (membership_.HandleTimeout(now)) FollowMembership(now);
  StartPendingCalls(now);
}

Instant Endpoint::PollTimeout() const {
  Instant at = std::min({waits_.timeout(), lag_.timeout(), membership_.timeout(), gate_.timeout(),
                         lifecycle_.timeout()});
  const bool stuck = membership_.stuck();
  return session_.peers.TimeoutBefore(at, [&](const Peer& peer) { return !peer.muted(stuck); });
}

void Endpoint::HandlePeerTimeouts(Instant now) {
  const bool stuck = membership_.stuck();
  const auto next = [&](std::size_t r) { return session_.peers.NextDue(now, r); };
  for (std::size_t r = next(0); r < session_.peers.size(); r = next(r + 1)) {
    if (session_.peers[r]->muted(stuck)) continue;
    const Rank rank(static_cast<std::uint16_t>(r));
    deliveries_.Handle(now, rank, session_.peers.Touch(rank).flow.HandleTimeout(now));
    CheckPath(now, rank);
    transmitter_.AskRefused(now, rank);
    failures_.RecordUnanswered(rank);
  }
  for (const Rank rank : failures_.FindUnanswered(now)) {
    MarkSilent(now, rank, failures_.WhySilent(rank));
  }
}

void Endpoint::CheckPendingDrains(Instant now) {
  std::vector<Rank> silent;
  bool any = false;
  gate_.ForEachPendingDrain([&](const CollectiveSpec& spec, Instant since) {
    std::ranges::copy(failures_.FindSilent(now, spec, since), std::back_inserter(silent));
    any = true;
  });
  for (const Rank rank : silent) MarkSilent(now, rank, failures_.WhySilent(rank));
  if (any) waits_.LookAgain(now);
}

void Endpoint::CheckWaiting(Instant now) {
  const bool due = now >= waits_.timeout();
  for (const CallId call : waits_.PopDue(now, !gate_.empty())) {
    const auto find = [&] {
      OpenCall* const open = session_.calls.Find(call);
      const bool waits = open != nullptr && WaitMonitor::Waits(open->exchange, /*held=*/true);
      return waits ? open : nullptr;
    };
    OpenCall* open = find();
    // Failed together with another call.
    if (open == nullptr) continue;
    const Instant since = open->exchange.program().submitted_at();
    for (const Rank rank : failures_.FindSilent(now, open->exchange.collective().spec, since)) {
      MarkSilent(now, rank, failures_.WhySilent(rank));
    }
    open = find();
    if (open == nullptr) continue;
    const Exchange& exchange = open->exchange;
    if (exchange.waiting()) {
      Status why = WhyHopeless(now, exchange);
      if (!why.ok()) {
        lifecycle_.Apply(now, {{.call = call, .why = std::move(why)}});
        continue;
      }
      mismatch_.Report(now, exchange);
    }
    waits_.AddAgain(now, exchange);
  }
  if (due) CheckPendingDrains(now);
}

Status Endpoint::WhyHopeless(Instant now, const Exchange& exchange) {
  Status why = failures_.WhyAbandoned(now, exchange);
  if (why.ok()) why = mismatch_.WhyGivenUp(exchange.collective(), exchange.call().sequence);
  if (why.ok()) why = mismatch_.FindCrossed(now, exchange);
  if (why.ok()) why = waits_.WhyExpired(now, exchange);
  return why;
}

// ---- Peers and members.

void Endpoint::CheckPath(Instant now, Rank rank) {
  const FailureDetector::PathChange path = failures_.CheckPath(rank);
  const Peer& peer = *session_.peers[rank];
  if (path.changed) membership_.SetUnusable(now, rank, peer.black_hole);
  if (!path.why) return;
  // Where others may continue without it, it is as good as silent; else the next call tries again.
  if (membership_.in_use() && !peer.silent()) MarkSilent(now, rank, *path.why);
  lifecycle_.Apply(now, failures_.FindUnserved(rank, *path.why));
}

void Endpoint::MarkSilent(Instant now, Rank rank, std::string why) {
  // Possibly since the last peer of the same loop.
  if (session_.peers[rank]->gone()) return;
  if (failures_.MarkSilent(rank, std::move(why))) DropPeer(now, rank);
  if (!membership_.in_use()) return;
  membership_.Suspect(now, rank);
  FollowMembership(now);
}

void Endpoint::Remove(Instant now, Rank rank, std::string_view why) {
  if (session_.peers[rank]->gone()) return;
  failures_.MarkLeft(rank, why);
  DropPeer(now, rank);
}

void Endpoint::DropPeer(Instant now, Rank rank) {
  FailureDetector::PeerLoss loss = failures_.DropPeer(now, rank);
  lifecycle_.Apply(now, std::move(loss.verdicts));
  lifecycle_.FinishComplete(now);
  if (!loss.undecided) return;
  membership_.Suspect(now, rank);
  FollowMembership(now);
}

void Endpoint::FollowMembership(Instant now) {
  membership_.Follow(now);
  while (membership_.AdoptNext()) HandleView(now);
  if (!membership_.stuck()) return;
  // Where no call was told, all is kept: the others may come back.
  if (!FailAll(now, membership_.WhyStuck(now), /*only_outliving=*/true)) return;
  for (const Rank rank : failures_.GiveUpSuspects()) DropPeer(now, rank);
}

void Endpoint::HandleView(Instant now) {
  const bool removed = membership_.removed();
  if (removed) FailAll(now, WhyRemoved(), /*only_outliving=*/false);
  for (const Peer& peer : session_.peers.others()) {
    // No peer takes the data of earlier calls of a rank that was removed, nor does a silent one
    // that is heard again.
    if (peer.removed() || (removed ? peer.left() : membership_.view().Has(peer.rank))) continue;
    failures_.MarkRemoved(peer.rank);
    DropPeer(now, peer.rank);
  }
  if (!removed) gate_.HandleView(now);
}

}  // namespace optireduce
