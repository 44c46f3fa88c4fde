#include "ffi/runtime/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "ffi/base/quoted.h"
#include "ffi/net/clock.h"
#include "ffi/net/fault_port.h"
#include "ffi/protocol/bucket/bucket_parts.h"
#include "ffi/protocol/bucket/bucket_view.h"
#include "ffi/protocol/endpoint.h"
#include "ffi/protocol/stats.h"
#include "ffi/runtime/guarded_membership.h"

namespace optireduce {
namespace {

// Buckets of at least this many bytes are split across several lanes.
// Chosen: the time for which a lane sends 1 MiB is about what makes waking another lane worthwhile.
constexpr std::size_t kCutBytesMin = std::size_t{1} << 20;

// Longest wait of a report for the lanes.
// Chosen: a turn of a lane takes milliseconds, on a busy host tenths of a second.
constexpr Duration kExamineMax = std::chrono::seconds(1);

// Fills in what a lane knows of open calls.
void AddWaitingOf(std::span<CallRecord> records,
                  const std::map<std::uint64_t, WaitingCall>& of_lane) {
  const auto add = [](std::vector<Rank>& to, const std::vector<Rank>& ranks) {
    for (const Rank rank : ranks) {
      if (std::ranges::find(to, rank) == to.end()) to.push_back(rank);
    }
    std::ranges::sort(to);
  };
  for (CallRecord& record : records) {
    const auto waiting = of_lane.find(record.number);
    if (waiting == of_lane.end()) continue;
    if (record.state != CallRecord::State::kUnderWay) continue;  // the lane's data is older
    record.sequence = waiting->second.sequence;
    add(record.waiting_for, waiting->second.ranks);
    add(record.absent, waiting->second.absent);
  }
}

// The parts of one call, until the last of them is done.
struct PartsUnderWay {
  std::mutex mutex;
  std::size_t left = 0;
  PartOutcomes outcomes;
};

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::Create(const CommunicatorOptions& options,
                                                           std::shared_ptr<CompletionPool> pool) {
  Result<std::uint32_t> session = SessionTag(options.secret);
  if (!session.ok()) return session.status();
  CommunicatorOptions with_session = options;
  with_session.session = session.value();
  auto communicator =
      std::shared_ptr<Communicator>(new Communicator(with_session, std::move(pool)));
  communicator->CreateRendezvous();
  if (options.world_size > 1) {
    if (Status status = communicator->OpenPorts(); !status.ok()) return status;
  }
  return communicator;
}

Communicator::Communicator(const CommunicatorOptions& options, std::shared_ptr<CompletionPool> pool)
    : options_(options), pool_(std::move(pool)), monitor_(options) {}

Communicator::~Communicator() { Close("the communicator was destroyed"); }

void Communicator::CreateRendezvous() {
  // Weak: the rendezvous belongs to the communicator, and outlives it only while its tasks run.
  const auto submit = [weak = weak_from_this(), pool = pool_](Submission submission,
                                                              CallDoneFunction done) {
    if (const auto communicator = weak.lock()) {
      communicator->Submit(std::move(submission), std::move(done));
      return;
    }
    pool->Run([done = std::move(done)] {
      done(Status(StatusCode::kCancelled, "the communicator was destroyed"), CallStats{});
    });
  };
  // Called with the rendezvous's lock held: the last reference to the communicator, which destroys
  // the rendezvous, must be dropped elsewhere.
  const auto with_self = [weak = weak_from_this(), pool = pool_](const auto& function) {
    auto self = weak.lock();
    if (!self) return;
    function(*self);
    pool->Run([self = std::move(self)] {});
  };
  const auto give_up = [with_self](const Submission& call, const Status& why) {
    with_self([&](Communicator& self) { self.GiveUp(call, why); });
  };
  const auto tell = [with_self](DevicesEvent event) {
    with_self([&](Communicator& self) { self.monitor_.Tell(std::move(event)); });
  };
  rendezvous_ = DeviceRendezvous::Create(pool_, {.submit = submit,
                                                 .give_up = give_up,
                                                 .tell = tell,
                                                 .call_timeout = options_.call_timeout,
                                                 .stall_timeout = options_.stall_timeout});
}

Status Communicator::OpenPorts() {
  for (std::uint16_t lane = 0; lane < options_.lanes; ++lane) {
    Result<std::unique_ptr<UdpPort>> port =
        UdpPort::Create(UdpPortOptions{.bind_address = options_.bind_address,
                                       .port = options_.ports.first,
                                       .port_last = options_.ports.second,
                                       .receive_buffer_bytes = options_.receive_buffer_bytes});
    if (!port.ok()) return port.status();
    ports_.push_back(port.value()->local_port());
    features_.segmentation_offload =
        (lane == 0 || features_.segmentation_offload) && port.value()->segmentation_offload();
    features_.receive_offload =
        (lane == 0 || features_.receive_offload) && port.value()->receive_offload();
    const std::size_t granted = port.value()->granted_receive_buffer_bytes();
    granted_receive_buffer_bytes_ =
        lane == 0 ? granted : std::min(granted_receive_buffer_bytes_, granted);
    unconnected_.push_back(std::move(port.value()));
  }
  return Status();
}

Status Communicator::ValidateRanks(const std::vector<RankAddress>& ranks,
                                   std::size_t datagram_bytes_max) const {
  if (closed_) return *closed_;
  if (datagram_bytes_max_ != 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "connect() may be called once; open another communicator to connect anew.");
  }
  if (ranks.size() != options_.world_size) {
    return InvalidArgument(
        "connect() needs the address of every rank, this one included: expected " +
        std::to_string(options_.world_size) + ", got " + std::to_string(ranks.size()) + ".");
  }
  for (const RankAddress& rank : ranks) {
    if (options_.world_size > 1 && !rank.ports.empty() && rank.ports.size() != options_.lanes) {
      return InvalidArgument("every rank must have the same number of lanes: this one has " +
                             std::to_string(options_.lanes) + ", " + rank.address + " has " +
                             std::to_string(rank.ports.size()) + ".");
    }
  }
  if (datagram_bytes_max == 0)
    return InvalidArgument("datagram_bytes_max must be positive bytes, got 0.");
  return Status();
}

Result<std::unique_ptr<Endpoint>> Communicator::ConnectLane(
    const std::vector<RankAddress>& ranks, std::shared_ptr<SharedMembership> membership,
    const EndpointOptions& options) {
  std::vector<PeerAddress> peers;
  for (const RankAddress& rank : ranks) {
    const bool absent = rank.ports.empty();
    peers.push_back({.address = absent ? ranks[options.rank.index()].address : rank.address,
                     .port = absent ? kDiscardPort : rank.ports[options.lane]});
  }
  Status status = unconnected_[options.lane]->SetPeers(peers, options.datagram_bytes_max);
  if (!status.ok()) return status;
  return Endpoint::Create(options, std::move(membership));
}

Status Communicator::Connect(const std::vector<RankAddress>& ranks, std::size_t datagram_bytes_max,
                             std::size_t peer_receive_buffer_bytes) {
  const std::lock_guard lock(mutex_);
  if (Status status = ValidateRanks(ranks, datagram_bytes_max); !status.ok()) return status;
  const std::vector<Rank> absent = AbsentOf(ranks);
  // One agreement for all lanes.
  std::shared_ptr<GuardedMembership> membership;
  if (options_.lanes > 1) {
    membership = std::make_shared<GuardedMembership>(options_.rank, options_.world_size,
                                                     options_.peer_timeout, options_.lanes,
                                                     Slices(options_.ranks_per_slice), absent);
  }
  // All operations that can fail come first, so that a failed connect() may be repeated.
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (std::uint16_t lane = 0; lane < unconnected_.size(); ++lane) {
    Result<std::unique_ptr<Endpoint>> endpoint = ConnectLane(
        ranks, membership,
        EndpointOptionsOf(options_, lane, ranks, datagram_bytes_max, peer_receive_buffer_bytes));
    if (!endpoint.ok()) return endpoint.status();
    endpoints.push_back(std::move(endpoint.value()));
  }
  std::vector<std::unique_ptr<DatagramPort>> ports;
  for (std::uint16_t lane = 0; lane < endpoints.size(); ++lane) {
    std::unique_ptr<DatagramPort>& port = ports.emplace_back(std::move(unconnected_[lane]));
    if (const auto faults = FaultsOf(options_, lane)) {
      port = std::make_unique<FaultPort>(std::move(port), *faults);
    }
    // Added before any lane runs. The ports are destroyed after all threads have ended.
    if (membership) membership->AddLane([port = port.get()] { port->Wake(); });
  }
  for (std::uint16_t lane = 0; lane < endpoints.size(); ++lane) {
    lanes_.push_back(std::make_unique<Lane>(
        std::move(ports[lane]), std::move(endpoints[lane]), datagram_bytes_max,
        // `this` is valid: the lanes end before it.
        LaneListener{.ranks_left = [this](const auto& live,
                                          const auto& path) { monitor_.SetLive(live, path); },
                     .lone_call = [this](LoneCall lone) { monitor_.Tell(std::move(lone)); }}));
  }
  unconnected_.clear();
  datagram_bytes_max_ = datagram_bytes_max;
  return Status();
}

void Communicator::ContinueFrom(const Communicator& earlier) {
  if (!CheckConnected().ok() || !earlier.CheckConnected().ok()) return;
  for (std::size_t i = 0; i < std::min(lanes_.size(), earlier.lanes_.size()); ++i) {
    if (std::optional<Timings> timings = earlier.lanes_[i]->FindTimings()) {
      lanes_[i]->ContinueFrom(std::move(*timings));
    }
  }
}

void Communicator::Start(DeviceCall call) {
  SetDeadlines(options_, call.spec);
  rendezvous_->Start(std::move(call));
}

Status Communicator::CheckConnected() const {
  const std::lock_guard lock(mutex_);
  if (closed_) return *closed_;
  if (datagram_bytes_max_ == 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "communicator " + Quoted(options_.name) +
                      " is not connected yet; call jax_optireduce.init() before the first step.");
  }
  return Status();
}

void Communicator::Submit(Submission submission, CallDoneFunction done) {
  if (const Status status = CheckConnected(); !status.ok()) {
    return Complete(std::move(done), status, CallStats{});
  }
  // The sum of one contribution, or of no elements, needs no network.
  if (submission.spec.members.size() <= 1 || submission.spec.elements == 0) {
    MoveToPlace(submission.leaves, SizeOf(submission.spec.element_type));
    return Complete(std::move(done), Status(), CallStats{.slowest = options_.rank});
  }
  SubmitToLanes(std::move(submission), std::move(done));
}

void Communicator::GiveUp(const Submission& call, const Status& why) {
  // Without a network there is no peer to inform.
  const bool alone = call.spec.members.size() <= 1 || call.spec.elements == 0;
  if (alone || !CheckConnected().ok()) return;
  for (BucketPart& part : CutBucket(call, lanes_.size(), kCutBytesMin)) {
    lanes_[part.lane]->GiveUp(std::move(part.submission), why);
  }
}

void Communicator::SubmitToLanes(Submission submission, CallDoneFunction done) {
  const std::uint64_t record = monitor_.Begin(submission);
  submission.record = record;
  std::vector<BucketPart> parts = CutBucket(submission, lanes_.size(), kCutBytesMin);
  auto under_way = std::make_shared<PartsUnderWay>();
  under_way->left = parts.size();
  const auto shared_done = std::make_shared<CallDoneFunction>(std::move(done));
  for (BucketPart& part : parts) {
    const std::uint64_t elements = part.submission.spec.elements;
    lanes_[part.lane]->Submit(
        std::move(part.submission),
        // `this` is valid, since the lanes end before it. A shared reference would be unsafe: the
        // last one could be dropped here, on the lane's thread, which cannot join itself.
        [this, under_way, shared_done, elements, record](const Status& status,
                                                         const CallStats& stats) {
          {
            const std::lock_guard lock(under_way->mutex);
            under_way->outcomes.Add(status, stats, elements);
            if (--under_way->left > 0) return;
          }
          const PartOutcomes& outcomes = under_way->outcomes;
          monitor_.End(record, outcomes.status(), outcomes.stats());
          Complete(std::move(*shared_done), outcomes.status(), outcomes.stats());
        });
  }
}

void Communicator::Complete(CallDoneFunction done, const Status& status, const CallStats& stats) {
  ++(status.ok() ? calls_completed_ : calls_failed_);
  pool_->Run([done = std::move(done), status, stats] { done(status, stats); });
}

void Communicator::Cancel(const std::string& reason) {
  const Status why(StatusCode::kCancelled, reason, {.cause = Cause::kCancelled});
  rendezvous_->Cancel(why);
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) lane->Cancel(why);
}

Status Communicator::Remove(std::uint16_t rank, const std::string& why) {
  if (rank >= options_.world_size || Rank(rank) == options_.rank) {
    return InvalidArgument("remove() needs the number of another rank, below " +
                           std::to_string(options_.world_size) + ", got " + std::to_string(rank) +
                           ".");
  }
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) lane->Remove(Rank(rank), why);
  return Status();
}

void Communicator::Close(const std::string& reason) {
  const Status why(StatusCode::kCancelled, reason, {.cause = Cause::kCancelled});
  std::unique_ptr<StatusServer> status_server;  // ends with this function, without the mutex
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_ = why;
    status_server = std::move(status_server_);
    if (status_server) status_server->Stop();
    unconnected_.clear();
    // All at once, so that their final waits overlap. From here on `lanes_` is constant.
    for (const auto& lane : lanes_) lane->StartClosing(why);
  }
  rendezvous_->Close(why);
  for (const auto& lane : lanes_) lane->Close(why);
  monitor_.Close();
}

std::vector<LateData> Communicator::TakeLateData() {
  std::vector<LateData> sum;
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    for (LateData& of_lane : lane->TakeLateData()) {
      const auto same = std::ranges::find(sum, of_lane.description, &LateData::description);
      if (same == sum.end()) {
        sum.push_back(std::move(of_lane));
      } else {
        same->bytes += of_lane.bytes;
      }
    }
  }
  return sum;
}

std::vector<CallRecord> Communicator::FlightRecords() const {
  std::vector<CallRecord> records = monitor_.Records();
  AddWaiting(records);
  return records;
}

std::vector<CallRecord> Communicator::CallsUnderWay() const {
  std::vector<CallRecord> records = monitor_.OpenRecords();
  AddWaiting(records);
  return records;
}

std::vector<Rank> Communicator::SilentRanks() const { return RanksOfLanes(&LaneSnapshot::silent); }

std::vector<Rank> Communicator::UnreachedRanks() const {
  return RanksOfLanes(&LaneSnapshot::unreached);
}

void Communicator::ProbePaths(const std::vector<std::size_t>& lengths) {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) lane->ProbePaths(lengths);
}

std::vector<std::pair<std::uint16_t, UnprovenPath>> Communicator::UnprovenPaths() const {
  std::vector<std::pair<std::uint16_t, UnprovenPath>> paths;
  const std::lock_guard lock(mutex_);
  for (std::uint16_t i = 0; i < lanes_.size(); ++i) {
    const LaneSnapshot snapshot = lanes_[i]->snapshot();
    for (std::uint16_t peer = 0; !snapshot.unproven && peer < options_.world_size; ++peer) {
      if (Rank(peer) != options_.rank) paths.emplace_back(i, UnprovenPath{.peer = Rank(peer)});
    }
    if (!snapshot.unproven) continue;
    for (const UnprovenPath& path : *snapshot.unproven) paths.emplace_back(i, path);
  }
  return paths;
}

std::vector<Rank> Communicator::RanksOfLanes(std::vector<Rank> LaneSnapshot::* which) const {
  std::set<Rank> ranks;
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    const LaneSnapshot snapshot = lane->snapshot();
    ranks.insert((snapshot.*which).begin(), (snapshot.*which).end());
  }
  return {ranks.begin(), ranks.end()};
}

std::optional<MonitorEvent> Communicator::WaitForEvent() {
  std::optional<MonitorEvent> event = monitor_.Wait();
  if (event) {
    if (auto* const stall = std::get_if<StallEvent>(&*event)) AddWaiting({&stall->call, 1});
  }
  return event;
}

void Communicator::AddWaiting(std::span<CallRecord> records) const {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) AddWaitingOf(records, lane->snapshot().waiting);
}

Status Communicator::ServeStatus(const std::string& folder) {
  if (const Status status = CheckConnected(); !status.ok()) return status;
  std::array<char, 64> name{};  // more than the longest of these names
  std::snprintf(name.data(), name.size(), "%08x-%u-%d.sock", options_.session,
                unsigned{options_.rank.value()}, getpid());
  // `this` is valid: the server ends in Close().
  Result<std::unique_ptr<StatusServer>> server =
      StatusServer::Start(folder, name.data(), [this] { return ToJson(Examine()); });
  if (!server.ok()) return server.status();
  const std::lock_guard lock(mutex_);
  if (closed_) return *closed_;
  std::swap(status_server_, server.value());
  return Status();
}

StatusReport Communicator::Examine() const {
  StatusReport report{.process = getpid(),
                      .rank = options_.rank,
                      .world_size = options_.world_size,
                      .session = options_.session,
                      .at = {},
                      .members = monitor_.members(),
                      .calls = monitor_.OpenRecords(),
                      .last_ended = monitor_.LastEnded(),
                      .devices = rendezvous_->Waiting(),
                      .peers = {},
                      .mute_lanes = {}};
  ExamineLanes(report);
  report.at = ClockNow();
  return report;
}

void Communicator::ExamineLanes(StatusReport& report) const {
  const Instant until = ClockNow() + kExamineMax;
  std::map<Rank, PeerReport> peers;
  for (std::uint16_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::optional<LaneReport> answer = lanes_[lane]->Examine(until);
    if (!answer) {
      report.mute_lanes.push_back(lane);
      continue;
    }
    AddWaitingOf(report.calls, answer->waiting);
    for (const PeerReport& peer : answer->peers) {
      const auto [known, added] = peers.emplace(peer.rank, peer);
      if (!added) AddReport(known->second, peer);
    }
  }
  for (auto& [rank, peer] : peers) report.peers.push_back(std::move(peer));
}

std::vector<std::pair<std::string, std::uint64_t>> Communicator::counters() const {
  LaneSnapshot sum;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& lane : lanes_) {
      const LaneSnapshot snapshot = lane->snapshot();
#define OPTIREDUCE_ADD_COUNTER(name, meaning) sum.counters.name += snapshot.counters.name;
      OPTIREDUCE_COUNTERS(OPTIREDUCE_ADD_COUNTER)
#undef OPTIREDUCE_ADD_COUNTER
#define OPTIREDUCE_ADD_SEND_ERROR(name, meaning) sum.send_errors.name += snapshot.send_errors.name;
      OPTIREDUCE_SEND_ERRORS(OPTIREDUCE_ADD_SEND_ERROR)
#undef OPTIREDUCE_ADD_SEND_ERROR
      sum.socket_drops += snapshot.socket_drops;
      sum.memory_bytes += snapshot.memory_bytes;
    }
  }
  // A bucket split across several lanes is one call to the user.
  sum.counters.calls_completed = calls_completed_;
  sum.counters.calls_failed = calls_failed_ + rendezvous_->failures();
  std::vector<std::pair<std::string, std::uint64_t>> named;
#define OPTIREDUCE_NAME_COUNTER(name, meaning) named.emplace_back(#name, sum.counters.name);
  OPTIREDUCE_COUNTERS(OPTIREDUCE_NAME_COUNTER)
#undef OPTIREDUCE_NAME_COUNTER
#define OPTIREDUCE_NAME_SEND_ERROR(name, meaning) \
  named.emplace_back("send_" #name, sum.send_errors.name);
  OPTIREDUCE_SEND_ERRORS(OPTIREDUCE_NAME_SEND_ERROR)
#undef OPTIREDUCE_NAME_SEND_ERROR
  named.emplace_back("socket_drops", sum.socket_drops);
  const BegunCallsCounters begun = begun_calls_->counters();
  named.emplace_back("memory_bytes", sum.memory_bytes + begun.memory_bytes);
  named.emplace_back("live_processes", monitor_.members().size());
  named.emplace_back("handles_open", begun.open);
  named.emplace_back("handles_dropped", begun.dropped);
  const CompletionPoolCounters pool = pool_->counters();
  named.emplace_back("completion_threads_peak", pool.threads_peak);
  named.emplace_back("completions_waited", pool.waited);
  named.emplace_back("log_events_dropped", monitor_.events_dropped());
  return named;
}

}  // namespace optireduce
