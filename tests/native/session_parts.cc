// The parts of an endpoint beneath the driver contract, for the tests of one part at a time: the
// test moves time, opens calls and shows the signs of peers. Nothing is sent.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/protocol/detectors/failure_detector.h"
#include "ffi/protocol/detectors/mismatch_detector.h"
#include "ffi/protocol/detectors/wait_monitor.h"
#include "ffi/protocol/lifecycle/call_gate.h"
#include "tests/native/binding.h"
#include "tests/native/collective.h"
#include "tests/native/membership_values.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

constexpr const char* kDecisions[] = {"open", "merge", "refuse"};
constexpr const char* kStates[] = {"alive", "suspected", "silent",
                                   "left",  "removed",   "removed after leaving"};

EndpointOptions OptionsOf(std::uint16_t rank, std::uint16_t world_size, double peer_timeout,
                          double mismatch_timeout, double call_timeout, std::uint32_t max_lag,
                          std::size_t early_bytes_max, std::size_t shard_bytes_min) {
  EndpointOptions options;
  options.rank = Rank(rank);
  options.world_size = world_size;
  options.peer_timeout = FromSeconds(peer_timeout);
  options.mismatch_timeout = FromSeconds(mismatch_timeout);
  options.call_timeout = FromSeconds(call_timeout);
  options.max_lag = max_lag;
  options.early_bytes_max = early_bytes_max;
  options.shard_bytes_min = shard_bytes_min;
  return options;
}

// Calls and verdicts are pairs of collective and sequence. Errors are texts, empty for none.
class SessionParts {
 public:
  explicit SessionParts(const EndpointOptions& options) : session_(options) {
    RaiseUnlessOk(session_.peers.Connect());
  }

  // ---- The scene.

  std::uint32_t Learn(const Collective& collective) {
    return Unwrap(session_.directory.FindOrAdd(collective.ToSpec()))->id.value();
  }
  void Open(double now, Pair call) {
    session_.calls.Open(At(now), Of(call), IdOf(call).sequence, false);
  }
  // The program makes the call.
  void Submit(double now, Pair call) {
    if (!session_.calls.Contains(IdOf(call))) Open(now, call);
    optireduce::Collective& collective = Of(call);
    collective.submitted = IdOf(call).sequence;
    session_.calls.At(IdOf(call)).exchange.Submit(At(now), SubmissionOf(call), /*in_order=*/true);
  }
  // A datagram of the peer has come, in a call or in none.
  void Hear(double now, std::uint16_t from, std::optional<Pair> call) {
    failures_.Heard(At(now), session_.peers.Touch(Rank(from)));
    if (!call) return;
    session_.calls.At(IdOf(*call)).exchange.Heard(*Of(*call).MemberOf(Rank(from)));
  }
  void Announce(double now, std::uint16_t from, Pair call) {
    optireduce::Collective& collective = Of(call);
    collective.announced_at[collective.MemberOf(Rank(from))->index()] = {
        .at = At(now), .sequence = IdOf(call).sequence};
  }
  // Control datagrams queued for a peer: (kind, call).
  std::vector<std::pair<int, Pair>> Control(std::uint16_t to) {
    std::vector<std::pair<int, Pair>> queued;
    session_.peers[Rank(to)]->control.AnyOf([&](const SentInfo& info) {
      queued.emplace_back(static_cast<int>(info.kind), ToPairs({info.call}).front());
      return false;
    });
    return queued;
  }

  // ---- Admission.

  std::string Decide(std::uint32_t collective, bool suspended) {
    return kDecisions[static_cast<int>(admission_.Decide(Of({collective, 0}), suspended).decision)];
  }
  bool HasRoomFor(std::uint32_t collective) { return admission_.HasRoomFor(Of({collective, 0})); }
  bool IsOver(Pair call) { return admission_.IsOver(Of(call), IdOf(call).sequence); }
  bool IsAbandoned(std::uint32_t collective) { return admission_.IsAbandoned(Of({collective, 0})); }
  void LeaveAdmission() { admission_.Leave(); }

  // ---- WaitMonitor.

  void Wait(double now, Pair call) { waits_.Add(At(now), ExchangeOf(call)); }
  void WaitAgain(double now, Pair call) { waits_.AddAgain(At(now), ExchangeOf(call)); }
  std::vector<Pair> PopDue(double now) { return ToPairs(waits_.PopDue(At(now), /*held=*/false)); }
  double WaitTimeout() const { return ToSeconds(waits_.timeout()); }
  std::pair<std::vector<int>, std::vector<int>> WaitingFor(Pair call) {
    const WaitingCall waiting = waits_.WaitingFor(ExchangeOf(call));
    return {ToInts(waiting.ranks), ToInts(waiting.absent)};
  }
  std::string WhyExpired(double now, Pair call) {
    return waits_.WhyExpired(At(now), ExchangeOf(call)).message();
  }

  // ---- MismatchDetector.

  void Report(double now, Pair call) { mismatch_.Report(At(now), ExchangeOf(call)); }
  void HandleReport(double now, std::uint16_t from, Pair call) {
    mismatch_.HandleReport(At(now), Rank(from), IdOf(call));
  }
  std::string FindCrossed(double now, Pair call) {
    return mismatch_.FindCrossed(At(now), ExchangeOf(call)).message();
  }
  std::string FindMismatched(Pair call) {
    return mismatch_.FindMismatched(ExchangeOf(call)).message();
  }

  // ---- FailureDetector.

  std::string State(std::uint16_t rank) {
    return kStates[static_cast<int>(session_.peers[Rank(rank)]->state())];
  }
  bool MarkSilent(std::uint16_t rank) { return failures_.MarkSilent(Rank(rank), "silent"); }
  void MarkLeft(std::uint16_t rank) { failures_.MarkLeft(Rank(rank), "done"); }
  std::vector<int> FindSilent(double now, Pair call) {
    const Exchange& exchange = ExchangeOf(call);
    return ToInts(failures_.FindSilent(At(now), exchange.collective().spec,
                                       exchange.program().submitted_at()));
  }
  std::optional<int> FindUnreachable(Pair call) {
    const Peer* const peer = failures_.FindUnreachable(Of(call), SubmissionOf(call));
    return peer == nullptr ? std::nullopt : std::optional<int>(peer->rank.value());
  }
  // The calls that end by the loss of a peer; true if the members have to agree.
  std::pair<std::vector<Pair>, bool> DropPeer(double now, std::uint16_t rank) {
    const FailureDetector::PeerLoss release = failures_.DropPeer(At(now), Rank(rank));
    return {Failed(release.verdicts), release.undecided};
  }

  // ---- LagMonitor.

  std::vector<Pair> RecordAttendance(double now, Pair call, std::uint16_t from, bool past) {
    optireduce::Collective& collective = Of(call);
    return Named(lag_.RecordAttendance(At(now), collective, *collective.MemberOf(Rank(from)),
                                       IdOf(call).sequence, past));
  }
  void AnswerPast(Pair call, std::uint16_t to) {
    optireduce::Collective& collective = Of(call);
    lag_.AnswerPast(collective, *collective.MemberOf(Rank(to)), IdOf(call).sequence);
  }

  // ---- CallTable.

  bool Contains(Pair call) const { return session_.calls.Contains(IdOf(call)); }
  std::vector<Pair> Calls(std::uint32_t collective) {
    std::vector<CallId> calls;
    session_.calls.ForEach(CollectiveId(collective),
                           [&](CallId call, const OpenCall&) { calls.push_back(call); });
    return ToPairs(calls);
  }
  bool HasCalled(Pair call, bool drain, std::uint16_t member) {
    return session_.calls.HasCalled(Of(call), IdOf(call).sequence, drain, Rank(member));
  }

  // ---- PeerTable.

  std::size_t NextToSend(double now, std::size_t first) {
    return session_.peers.NextToSend(At(now), first);
  }
  void RecordQuiet(std::uint16_t rank) { session_.peers.RecordQuiet(Rank(rank)); }
  void Probe(std::uint16_t rank) {
    session_.peers.Touch(Rank(rank)).control.push_back({.kind = DatagramKind::kProbe});
  }
  std::size_t NextDue(double now, std::size_t first) const {
    return session_.peers.NextDue(At(now), first);
  }

  // ---- Transmitter.

  void AnnounceCall(Pair call) { transmitter_.Announce(Of(call), IdOf(call).sequence); }
  // The receiver of the next datagrams, or nothing.
  std::optional<int> PollTransmit(double now) {
    std::vector<std::byte> buffer(session_.options.datagram_bytes_max);
    const auto transmit = transmitter_.Poll(At(now), /*stuck=*/false, buffer, /*batch_max=*/1);
    return transmit ? std::optional<int>(transmit->to.value()) : std::nullopt;
  }
  void LeaveTransmitter() { transmitter_.Leave({StatusCode::kCancelled, "its program has ended"}); }

  // ---- CallLifecycle.

  void Begin(double now, Pair call) { lifecycle_.Begin(At(now), Of(call), SubmissionOf(call)); }
  void ExpireDue(double now) { lifecycle_.ExpireDue(At(now)); }
  double LifecycleTimeout() const { return ToSeconds(lifecycle_.timeout()); }
  bool FailAll(double now, const std::string& why, bool only_outliving) {
    return lifecycle_.FailAll(At(now), {StatusCode::kCancelled, why}, only_outliving);
  }
  std::uint64_t completed() const { return session_.counters.calls_completed; }
  std::uint64_t failed() const { return session_.counters.calls_failed; }

  // ---- LaneMembership.

  bool InUse() const { return membership_.in_use(); }
  bool Removed() const { return membership_.removed(); }
  std::vector<int> View() const { return ToInts(membership_.view().members); }
  bool TryStart(Pair call) {
    const optireduce::Collective& collective = Of(call);
    return membership_.TryStart(collective, collective, IdOf(call).sequence);
  }
  void Suspect(double now, std::uint16_t rank) { membership_.Suspect(At(now), Rank(rank)); }
  bool UseFor(std::uint32_t collective) { return membership_.UseFor(Of({collective, 0}).spec); }
  bool Survives(std::uint32_t collective) { return membership_.Survives(Of({collective, 0}).spec); }

  // ---- CallGate.

  void Hold(double now, Pair call) { gate_.Add(At(now), SubmissionOf(call), std::nullopt); }
  bool RefusedCalls() const { return !gate_.empty(); }
  void Start(double now) { gate_.Start(At(now)); }
  double SuccessionTimeout() const { return ToSeconds(gate_.timeout()); }
  void ExpireHeld(double now) { gate_.HandleTimeout(At(now)); }
  std::optional<std::string> PollEvent() {
    const std::optional<CallDone> done = lifecycle_.PollEvent();
    return done ? std::optional(done->status.message()) : std::nullopt;
  }

 private:
  static CallId IdOf(Pair call) { return CallsOf({call}).front(); }
  static std::vector<Pair> Named(const std::vector<Verdict>& verdicts) {
    std::vector<Pair> calls;
    for (const Verdict& verdict : verdicts) calls.push_back(ToPairs({verdict.call}).front());
    return calls;
  }
  static std::vector<Pair> Failed(std::vector<Verdict> verdicts) {
    std::erase_if(verdicts, [](const Verdict& verdict) { return verdict.why.ok(); });
    return Named(verdicts);
  }
  optireduce::Collective& Of(Pair call) { return *session_.directory.Find(IdOf(call).collective); }
  Exchange& ExchangeOf(Pair call) { return session_.calls.At(IdOf(call)).exchange; }
  Submission SubmissionOf(Pair call) {
    const CollectiveSpec& spec = Of(call).spec;
    std::vector<float>& bucket = buckets_[call];
    bucket.resize(spec.elements);
    return {.spec = spec,
            .sequence = IdOf(call).sequence,
            .leaves = {
                {.data = reinterpret_cast<std::byte*>(bucket.data()), .elements = spec.elements}}};
  }

  std::map<Pair, std::vector<float>> buckets_;
  SessionState session_;
  LaneMembership membership_{session_, nullptr};
  Admission admission_{session_};
  LagMonitor lag_{session_};
  Transmitter transmitter_{session_, admission_.refusals(), lag_};
  MismatchDetector mismatch_{session_, membership_};
  WaitMonitor waits_{session_};
  FailureDetector failures_{session_, membership_, admission_, transmitter_};
  CallLifecycle lifecycle_{session_,
                           {.membership = membership_,
                            .admission = admission_,
                            .lag = lag_,
                            .transmitter = transmitter_,
                            .mismatch = mismatch_,
                            .waits = waits_}};
  CallGate gate_{session_, membership_, lifecycle_, waits_};
};

// The scene, admission and waiting.
nb::class_<SessionParts> BindScene(nb::module_& m) {
  nb::class_<SessionParts> parts(m, "SessionParts");
  parts
      .def(
          "__init__",
          [](SessionParts* self, std::uint16_t rank, std::uint16_t world_size, double peer_timeout,
             double mismatch_timeout, double call_timeout, std::uint32_t max_lag,
             std::size_t early_bytes_max, std::size_t shard_bytes_min) {
            new (self)
                SessionParts(OptionsOf(rank, world_size, peer_timeout, mismatch_timeout,
                                       call_timeout, max_lag, early_bytes_max, shard_bytes_min));
          },
          nb::arg("rank"), nb::arg("world_size"), nb::arg("peer_timeout_s") = 30.0,
          nb::arg("mismatch_timeout_s") = 10.0, nb::arg("call_timeout_s") = 0.0,
          nb::arg("max_lag") = 2, nb::arg("early_bytes_max") = std::size_t{4} << 30,
          nb::arg("shard_bytes_min") = 1)
      .def("learn", &SessionParts::Learn)
      .def("open", &SessionParts::Open)
      .def("submit", &SessionParts::Submit)
      .def("hear", &SessionParts::Hear, nb::arg("now"), nb::arg("source"),
           nb::arg("call") = std::nullopt)
      .def("announce", &SessionParts::Announce)
      .def("control", &SessionParts::Control)
      .def("decide", &SessionParts::Decide, nb::arg("collective"), nb::arg("suspended") = false)
      .def("has_room_for", &SessionParts::HasRoomFor)
      .def("is_over", &SessionParts::IsOver)
      .def("is_abandoned", &SessionParts::IsAbandoned)
      .def("leave", &SessionParts::LeaveAdmission)
      .def("wait", &SessionParts::Wait)
      .def("wait_again", &SessionParts::WaitAgain)
      .def("pop_due", &SessionParts::PopDue)
      .def_prop_ro("wait_timeout", &SessionParts::WaitTimeout)
      .def("waiting_for", &SessionParts::WaitingFor)
      .def("why_expired", &SessionParts::WhyExpired);
  return parts;
}

void Bind(nb::module_& m) {
  BindScene(m)
      .def("report", &SessionParts::Report)
      .def("handle_report", &SessionParts::HandleReport)
      .def("find_crossed", &SessionParts::FindCrossed)
      .def("find_mismatched", &SessionParts::FindMismatched)
      .def("state", &SessionParts::State)
      .def("mark_silent", &SessionParts::MarkSilent)
      .def("mark_left", &SessionParts::MarkLeft)
      .def("find_silent", &SessionParts::FindSilent)
      .def("find_unreachable", &SessionParts::FindUnreachable)
      .def("release_peer", &SessionParts::DropPeer)
      .def("note_attendance", &SessionParts::RecordAttendance, nb::arg("now"), nb::arg("call"),
           nb::arg("source"), nb::arg("past") = false)
      .def("answer_past", &SessionParts::AnswerPast)
      .def("contains", &SessionParts::Contains)
      .def("calls", &SessionParts::Calls)
      .def("has_called", &SessionParts::HasCalled)
      .def("next_to_send", &SessionParts::NextToSend, nb::arg("now"), nb::arg("first") = 0)
      .def("note_quiet", &SessionParts::RecordQuiet)
      .def("probe", &SessionParts::Probe)
      .def("next_due", &SessionParts::NextDue, nb::arg("now"), nb::arg("first") = 0)
      .def("announce_call", &SessionParts::AnnounceCall)
      .def("poll_transmit", &SessionParts::PollTransmit)
      .def("leave_transmitter", &SessionParts::LeaveTransmitter)
      .def("begin", &SessionParts::Begin)
      .def("expire_due", &SessionParts::ExpireDue)
      .def_prop_ro("lifecycle_timeout", &SessionParts::LifecycleTimeout)
      .def("fail_all", &SessionParts::FailAll, nb::arg("now"), nb::arg("why"),
           nb::arg("only_outliving") = false)
      .def_prop_ro("completed", &SessionParts::completed)
      .def_prop_ro("failed", &SessionParts::failed)
      .def_prop_ro("in_use", &SessionParts::InUse)
      .def_prop_ro("removed", &SessionParts::Removed)
      .def_prop_ro("view", &SessionParts::View)
      .def("try_start", &SessionParts::TryStart)
      .def("suspect", &SessionParts::Suspect)
      .def("use_for", &SessionParts::UseFor)
      .def("survives", &SessionParts::Survives)
      .def("hold", &SessionParts::Hold)
      .def_prop_ro("holds", &SessionParts::RefusedCalls)
      .def("start", &SessionParts::Start)
      .def_prop_ro("succession_timeout", &SessionParts::SuccessionTimeout)
      .def("expire_held", &SessionParts::ExpireHeld)
      .def("poll_event", &SessionParts::PollEvent);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
