#include "ffi/fuzz/endpoint_program.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/bytes.h"
#include "ffi/base/check.h"
#include "ffi/fuzz/mutate.h"
#include "ffi/fuzz/ranks.h"
#include "ffi/fuzz/reach.h"
#include "ffi/protocol/collective/policy_traits.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
namespace {

// Chosen: inputs of the longest kind stay below a tenth of a second under the sanitizers.
constexpr int kStepsMax = 400;
constexpr std::size_t kOnTheWireMax = 512;
constexpr std::size_t kKeptMax = 64;
constexpr std::size_t kCallsUnderWayMax = 16;
// Chosen: of five ranks, two may fall silent one after the other, and a third one leaves no
// majority.
constexpr std::uint16_t kRanksMax = 5;
// Chosen: more calls than the learning of a deadline takes (kCalibrationCalls).
constexpr int kTogetherMax = 32;
constexpr int kTogetherOfAllMax = 96;
constexpr int kTurnsOfCall = 4;
// Chosen: longer than kPeerTimeout of ranks.cc plus an agreement, in steps of the interval of its
// messages.
constexpr int kSilenceSteps = 120;
constexpr int kSilencesMax = 4;
// Chosen: three times the endpoints' limit for early calls: in addition to the contributions
// counted there an open call may hold its results, and this rank's own calls are extra.
constexpr std::size_t kMemoryBytesMax = std::size_t{3} << 20;
// Chosen: several times the longest timeout, in steps of half a second.
constexpr int kFarewellSteps = 60;
// The first number after those that count the steps.
constexpr std::uint32_t kReachFirst = 128;

CollectiveSpec SpecOf(std::uint8_t which) {
  CollectiveSpec spec;
  spec.name = std::string(1, static_cast<char>('a' + which % 6));
  spec.description = spec.name + ": fuzzed";
  spec.fingerprint = which / 128;  // two programs that disagree
  spec.elements = std::array<std::uint64_t, 6>{10, 1, 3000, 700, 0, 12}[which % 6];
  if (which % 6 == 3) spec.element_type = ElementType::kBfloat16;
  if (which % 6 == 5) spec.element_type = ElementType::kInt32;
  if (which % 6 == 1 || which % 6 == 2) {
    spec.wire_format = static_cast<WireFormat>(which / 6 % kWireFormats);
    constexpr std::array<std::array<LatePolicy, 2>, 4> kModes = {
        {{LatePolicy::kWait, LatePolicy::kWait},
         {LatePolicy::kDefer, LatePolicy::kDefer},
         {LatePolicy::kDefer, LatePolicy::kWait},
         {LatePolicy::kDrop, LatePolicy::kDrop}}};
    spec.reduce_scatter = kModes[which / 32 % 4][0];
    spec.all_gather = kModes[which / 32 % 4][1];
    spec.reduce_scatter_deadline = spec.all_gather_deadline = std::chrono::milliseconds(20);
  }
  if (which % 6 == 5) {
    const std::uint32_t stage = which / 32 % 4;
    if (stage == 1 || stage == 2) spec.all_gather = LatePolicy::kNoStage;
    if (stage == 2) {
      spec.reduce_scatter = LatePolicy::kDefer;
      spec.reduce_scatter_deadline = std::chrono::milliseconds(20);
    }
    if (stage == 3) spec.reduce_scatter = LatePolicy::kNoStage;
  }
  return spec;
}

std::uint16_t RanksOf(std::uint8_t mode) {
  if ((mode & 2) == 0) return 2;
  return mode & 128 ? kRanksMax : 3;
}

class Program {
 public:
  explicit Program(std::span<const std::byte> input)
      : reader_(input),
        mode_(Take()),
        other_mode_(Take()),
        lies_((mode_ & 1) != 0),
        protection_(std::array{Protection::kAuthenticate, Protection::kEncrypt, Protection::kNone,
                               Protection::kAuthenticate}[mode_ / 4 % 4]),
        ranks_({.ranks = RanksOf(mode_),
                .lanes = static_cast<std::uint16_t>(1 + (other_mode_ & 1)),
                .protection = protection_,
                .datagram_bytes_max = mode_ & 16 ? std::size_t{548} : std::size_t{1472},
                .late_budget = mode_ & 64 ? 0.01 : 0.0}) {}

  ProgramReach Run() {
    for (int i = 0; i < kStepsMax && reader_.remaining() > 0; ++i) {
      Step();
      CheckMemory();
      RecordViews();
    }
    Farewell();
    for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::uint16_t lane = 0; lane < ranks_.lanes(); ++lane) {
        const Endpoint& endpoint = ranks_.endpoint(rank, lane);
        std::uint32_t what = 0;
#define OPTIREDUCE_REACH(name, meaning) Reach(++what, endpoint.counters().name);
        OPTIREDUCE_COUNTERS(OPTIREDUCE_REACH)
#undef OPTIREDUCE_REACH
        Reach(++what, endpoint.live().size());
      }
    }
    reach_.drain = ranks_.drains_completed() > 0;
    reach_.learned_deadline = ranks_.deadlines_learned() > 0;
    std::uint32_t what = kReachFirst;
#define OPTIREDUCE_REACH(name, meaning) Reach(what++, reach_.name);
    OPTIREDUCE_PROGRAM_REACH(OPTIREDUCE_REACH)
#undef OPTIREDUCE_REACH
    return reach_;
  }

 private:
  std::uint8_t Take() { return reader_.Read<std::uint8_t>(); }
  std::uint16_t TakeRank() { return static_cast<std::uint16_t>(Take() % ranks_.size()); }
  bool honest() const { return !lies_ && protection_ != Protection::kNone; }

  void Step() {
    const std::uint8_t what = Take() % 25;
    Reach(64 + what, ranks_.wire().size());
    if (what >= 20 || what < 10) return Act(what);
    if (ranks_.wire().empty()) ranks_.Poll();
    if (ranks_.wire().empty()) return ranks_.Advance(std::chrono::milliseconds(1));
    const std::size_t at = Take() % ranks_.wire().size();
    if (what < 14) return Attack(at, what);
    Move(at, what);
  }

  // Actions of programs and processes, and the progress of time.
  void Act(std::uint8_t what) {
    switch (what) {
      case 4:
        return Cancel();
      case 5:
        return ranks_.Advance(Duration(std::int64_t{1} << Take() % 32));
      case 6:
        return ranks_.Poll();
      case 21:
      case 22:
        return Together(/*drain=*/what == 22);
      case 23:
        return FallSilent();
      case 24:
        return ranks_.SetSilent(TakeRank(), false);
      default:
        return what > 6 && what < 10 ? DeliverAll() : Call();
    }
  }

  void Call() {
    const std::uint16_t rank = TakeRank();
    const std::uint8_t which = Take();
    // Occasionally a program skips sequences (step=).
    if (which % 16 == 15) sequences_[rank][which] += 3;
    Call(rank, which);
  }

  void Call(std::uint16_t rank, std::uint8_t which) {
    if (ranks_.calls_under_way() >= kCallsUnderWayMax || ranks_.silent(rank)) return;
    const CollectiveSpec spec = SpecOf(which);
    const std::uint32_t sequence = sequences_[rank][which]++;
    ranks_.Submit(rank, spec, sequence, drains_.contains({which, sequence}));
  }

  // All ranks make the same call, up to a given number of times, like the steps of a program.
  void Together(bool drain) {
    const std::uint8_t which = Take();
    const int times = drain ? 1 : 1 + Take() % kTogetherMax;
    for (int i = 0; i < times && together_++ < kTogetherOfAllMax; ++i) {
      // The others follow a rank that has skipped ahead.
      std::uint32_t next = 0;
      for (const auto& sequences : sequences_) next = std::max(next, sequences[which]);
      // A drain is a drain for every rank that makes it, at any time.
      if (drain && RetainsLateData(SpecOf(which))) drains_.insert({which, next});
      for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) {
        sequences_[rank][which] = next;
        Call(rank, which);
      }
      for (int turn = 0; turn < kTurnsOfCall; ++turn) DeliverAll();
    }
  }

  // A process is frozen; the others have time to detect it, and to agree on continuing.
  void FallSilent() {
    ranks_.SetSilent(TakeRank(), true);
    if (silences_++ >= kSilencesMax) return;
    for (int i = 0; i < kSilenceSteps; ++i) {
      ranks_.Advance(std::chrono::milliseconds(50));
      DeliverAll();
    }
  }

  void Cancel() {
    const std::uint16_t rank = TakeRank();
    const std::uint8_t which = Take();
    const Status why(StatusCode::kCancelled, "fuzzed");
    for (std::uint16_t lane = 0; lane < ranks_.lanes(); ++lane) {
      Endpoint& endpoint = ranks_.endpoint(rank, lane);
      which < 250 ? endpoint.Cancel(ranks_.now(), why) : endpoint.Leave(ranks_.now(), why);
    }
  }

  void DeliverAll() {
    ranks_.Poll();
    std::vector<Sent> wire = std::exchange(ranks_.wire(), {});
    for (const Sent& sent : wire) {
      DeliverAndKeep(sent);
    }
    ranks_.Advance(std::chrono::microseconds(100));
  }

  // Faults of the network.
  void Move(std::size_t at, std::uint8_t what) {
    std::vector<Sent>& wire = ranks_.wire();
    const auto place = wire.begin() + static_cast<std::ptrdiff_t>(at);
    if (what == 14) return void(wire.erase(place));
    if (what == 15) return std::swap(*place, wire.back());
    const Sent sent = *place;
    if (what != 16) wire.erase(place);
    DeliverAndKeep(sent);
    if (wire.size() > kOnTheWireMax) wire.resize(kOnTheWireMax);
  }

  static void Mutate(Prng& prng, Bytes& datagram) {
    const std::size_t bytes_max = datagram.size() + 64;
    for (std::uint64_t i = 0; i <= prng.Below(3); ++i) MutateOnce(prng, datagram, bytes_max);
  }

  // Actions of an attacker.
  void Attack(std::size_t at, std::uint8_t what) {
    Sent sent = ranks_.wire()[at];
    const unsigned low = Take();
    Prng prng(low | unsigned{Take()} << 8);
    if (what == 10 && lies_) return Lie(std::move(sent), prng);
    if (what == 11 && !kept_.empty()) {
      sent = kept_[prng.Below(kept_.size())];  // a replay
      if (prng.Below(2) == 0) sent.to = TakeRank();
    } else if (what == 12) {
      MutateField(prng, sent.datagram);
    } else {
      Mutate(prng, sent.datagram);
    }
    if (sent.datagram == ranks_.wire()[at].datagram && sent.to == ranks_.wire()[at].to) return;
    Harm(sent);
  }

  // Delivers a datagram that must not be accepted.
  void Harm(const Sent& sent) {
    Endpoint& target = ranks_.endpoint(sent.to, sent.lane);
    const Counters before = target.counters();
    const std::size_t memory = target.memory_bytes();
    ranks_.Deliver(sent);
    if (!honest()) return;
    const Counters& after = target.counters();
    OR_CHECK(after.datagrams_received == before.datagrams_received &&
             after.bytes_received == before.bytes_received && target.memory_bytes() == memory);
  }

  // A member sends an invalid or misleading datagram.
  void Lie(Sent sent, Prng& prng) {
    sent.datagram = ranks_.Open(sent);
    const std::size_t bytes_max = sent.datagram.size() + 64;
    for (std::uint64_t i = 0; i <= prng.Below(3); ++i) {
      if (prng.Below(2) == 0) {
        MutateField(prng, sent.datagram);
      } else {
        MutateOnce(prng, sent.datagram, bytes_max);
      }
    }
    sent.datagram.resize(std::max(sent.datagram.size(), kOverheadBytes));
    MakeConsistent(sent.datagram);
    sent.datagram = ranks_.Seal(sent);
    DeliverAndKeep(sent);
  }

  // Announcements are handled only if their identity matches their contents.
  void MakeConsistent(Bytes& datagram) const {
    const ParsedHeader parsed = ParseHeader(datagram);
    if (!parsed.header || !IsAnnouncement(parsed.header->kind)) return;
    const auto payload = std::span(datagram).subspan(kHeaderBytes);
    const auto spec = ParseAnnouncement(payload.first(payload.size() - kTagBytes), ranks_.size());
    if (!spec) return;
    Header header = *parsed.header;
    header.call.collective = IdOf(*spec);
    EncodeHeader(header, std::span(datagram).first<kHeaderBytes>());
  }

  // Keeps accepted datagrams for replays; one refused as too early may be accepted later.
  void DeliverAndKeep(const Sent& sent) {
    const Endpoint& target = ranks_.endpoint(sent.to, sent.lane);
    const std::uint64_t received = target.counters().datagrams_received;
    ranks_.Deliver(sent);
    if (target.counters().datagrams_received == received) return;
    RecordMerge(sent);
    kept_.push_back(sent);
    if (kept_.size() > kKeptMax) kept_.pop_front();
  }

  void CheckMemory() {
    for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::uint16_t lane = 0; lane < ranks_.lanes(); ++lane) {
        OR_CHECK(ranks_.endpoint(rank, lane).memory_bytes() <= kMemoryBytesMax);
      }
    }
    OR_CHECK(!honest() || ranks_.wrong_sums() == 0);
  }

  // A call beyond the accepted lead of ranks is accepted if it may be merged.
  void RecordMerge(const Sent& sent) {
    const ParsedHeader parsed = ParseHeader(sent.datagram);
    if (!parsed.header || parsed.header->kind != DatagramKind::kContribution) return;
    if ((parsed.header->flags & kFlagSuspended) == 0) return;
    const std::uint32_t next = std::ranges::max(sequences_[sent.to]);
    const std::uint32_t call = parsed.header->call.sequence.value();
    reach_.merge = reach_.merge || (call >= next && call - next >= EndpointOptions().max_lag);
  }

  void RecordViews() {
    for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::size_t live = ranks_.endpoint(rank).live().size();
      views_[rank] += live != std::exchange(live_[rank], live);
      // The first change is to the view of all ranks.
      reach_.view = reach_.view || views_[rank] > 1;
      reach_.view_after_view = reach_.view_after_view || views_[rank] > 2;
      reach_.view_of_lanes =
          reach_.view_of_lanes || (views_[rank] > 1 && ranks_.lanes() > 1 &&
                                   ranks_.endpoint(rank, 1).live().size() == live);
    }
  }

  // All ranks leave: every call has to end at once, and every rank to come to rest. Only a lying
  // rank can detain another: it answers, but never accepts the data that it is owed, nor announces
  // that it leaves. A lane bounds that time.
  void Farewell() {
    const Status why(StatusCode::kCancelled, "the end of the input");
    for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) ranks_.SetSilent(rank, false);
    for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::uint16_t lane = 0; lane < ranks_.lanes(); ++lane) {
        ranks_.endpoint(rank, lane).Leave(ranks_.now(), why);
      }
    }
    ranks_.Poll();
    OR_CHECK(ranks_.calls_under_way() == 0);
    for (int i = 0; i < kFarewellSteps; ++i) {
      DeliverAll();
      ranks_.Advance(std::chrono::milliseconds(500));
      CheckMemory();
    }
    for (std::uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::uint16_t lane = 0; lane < ranks_.lanes(); ++lane) {
        OR_CHECK(!honest() || ranks_.endpoint(rank, lane).finished());
      }
    }
  }

  ByteReader reader_;
  std::uint8_t mode_;
  std::uint8_t other_mode_;
  bool lies_;
  Protection protection_;
  Ranks ranks_;
  std::deque<Sent> kept_;  // delivered before
  std::array<std::array<std::uint32_t, 256>, kRanksMax> sequences_{};
  std::set<std::pair<std::uint8_t, std::uint32_t>> drains_;  // calls of `which`, by sequence
  int together_ = 0;                                         // calls of Together()
  int silences_ = 0;
  std::array<std::size_t, kRanksMax> live_{};
  std::array<int, kRanksMax> views_{};
  ProgramReach reach_;
};

}  // namespace
ProgramReach RunEndpointProgram(std::span<const std::byte> input) { return Program(input).Run(); }

}  // namespace optireduce
