#include "ffi/fuzz/forge.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/base/prng.h"
#include "ffi/fuzz/mutate.h"
#include "ffi/fuzz/ranks.h"
#include "ffi/protocol/submission.h"

namespace optireduce {
namespace {

constexpr std::uint16_t kRanks = 3;
// Chosen: calls still make progress with this many between two genuine datagrams.
constexpr int kForgedPerGenuine = 16;
// Chosen: datagrams from the whole run, most of them far older than the window of numbers.
constexpr std::size_t kRecordedMax = 1024;
constexpr std::size_t kBytesMax = 1600;  // somewhat longer than the session's datagrams

// Offsets of header fields, from the layout at the top of wire.h.
constexpr std::size_t kSourceAt = 2;
constexpr std::size_t kSessionAt = 4;

CollectiveSpec SpecOf(std::uint32_t which) {
  CollectiveSpec spec;
  spec.name = which == 0 ? "small" : "large";
  spec.description = spec.name;
  spec.elements = which == 0 ? 10 : 3000;
  return spec;
}

void CopyField(const Bytes& from, std::size_t at, std::size_t bytes, Bytes& to) {
  std::memcpy(to.data() + at, from.data() + at, bytes);
}

// The state of an endpoint that is visible without modifying it.
struct State {
  std::size_t memory_bytes = 0;
  Instant timeout{};
  std::uint64_t counted = 0;  // sum of all counters except refusals

  friend bool operator==(const State&, const State&) = default;
};

State StateOf(const Endpoint& endpoint) {
  State state;
  state.memory_bytes = endpoint.memory_bytes();
  state.timeout = endpoint.PollTimeout();
  const Counters& counters = endpoint.counters();
#define OPTIREDUCE_ADD_COUNTER(name, meaning) \
  if (!std::string_view(#name).starts_with("rejected_")) state.counted += counters.name;
  OPTIREDUCE_COUNTERS(OPTIREDUCE_ADD_COUNTER)
#undef OPTIREDUCE_ADD_COUNTER
  return state;
}

class Forger {
 public:
  Forger(std::uint64_t seed, Protection protection)
      : prng_(seed),
        ranks_({.ranks = kRanks, .protection = protection}),
        others_{Ranks({.ranks = kRanks, .session = 2, .protection = protection}),
                Ranks({.ranks = kRanks, .lane = 1, .protection = protection}),
                Ranks({.ranks = kRanks, .secret = 2, .protection = protection})} {}

  ForgeReport Run(std::uint64_t count) {
    for (std::uint32_t sequence = 0; report_.forged < count; ++sequence) {
      for (std::uint16_t rank = 0; rank < kRanks; ++rank) Call(ranks_, rank, sequence);
      for (Ranks& other : others_) Record(other, sequence);
      while (ranks_.calls_under_way() > 0) Exchange(ranks_, /*attacked=*/true);
    }
    // Until rest: delivers the last acknowledgements, which free the last buffers.
    for (int i = 0; i < 1000; ++i) Exchange(ranks_, /*attacked=*/false);
    return Report();
  }

 private:
  void Call(Ranks& ranks, std::uint16_t rank, std::uint32_t sequence) {
    for (const std::uint32_t which : {0u, 1u}) ranks.Submit(rank, SpecOf(which), sequence);
  }

  // One round: all datagrams sent are delivered.
  void Exchange(Ranks& ranks, bool attacked) {
    ranks.Poll();
    for (const Sent& sent : std::exchange(ranks.wire(), {})) {
      if (attacked) Attack(sent);
      ranks.Deliver(sent);
      if (!attacked) continue;
      ++report_.genuine;
      Keep(recorded_, sent);
    }
    ranks.Advance(std::chrono::microseconds(100));
  }

  // Records the same calls of another session.
  void Record(Ranks& other, std::uint32_t sequence) {
    for (std::uint16_t rank = 0; rank < kRanks; ++rank) Call(other, rank, sequence);
    std::vector<Sent>& kept = elsewhere_[static_cast<std::size_t>(&other - others_.data())];
    while (other.calls_under_way() > 0) {
      other.Poll();
      for (const Sent& sent : std::exchange(other.wire(), {})) {
        other.Deliver(sent);
        Keep(kept, sent);
      }
      other.Advance(std::chrono::microseconds(100));
    }
  }

  void Keep(std::vector<Sent>& kept, const Sent& sent) {
    if (kept.size() < kRecordedMax) {
      kept.push_back(sent);
    } else {
      kept[prng_.Below(kRecordedMax)] = sent;
    }
  }

  void Attack(const Sent& genuine) {
    // Ranks send their pending datagrams first, so that any further datagram is a response.
    ranks_.Poll();
    for (int i = 0; i < kForgedPerGenuine; ++i) {
      if (const std::optional<Sent> forged = Make(genuine)) Deliver(*forged);
    }
    const std::size_t sent = ranks_.wire().size();
    ranks_.Poll();
    report_.answered += ranks_.wire().size() - sent;
  }

  void Deliver(const Sent& forged) {
    Endpoint& target = ranks_.endpoint(forged.to);
    const std::uint64_t received = target.counters().datagrams_received;
    const State before = StateOf(target);
    ranks_.Deliver(forged);
    ++report_.forged;
    report_.accepted += target.counters().datagrams_received - received;
    report_.state_changes += StateOf(target) != before;
  }

  // Nothing if the random changes had no effect.
  std::optional<Sent> Make(const Sent& genuine) {
    const bool recorded = !recorded_.empty() && prng_.Below(2) == 0;
    Sent sent = recorded ? recorded_[prng_.Below(recorded_.size())] : genuine;
    const Bytes before = sent.datagram;
    const std::uint64_t way = prng_.Below(12);
    if (way >= kWays) return MakeUnchanged(std::move(sent), recorded);
    std::uint64_t& made = Change(way, sent.datagram);
    if (sent.datagram == before) return std::nullopt;
    ++made;
    return sent;
  }

  // Ways of changing a datagram.
  static constexpr std::uint64_t kWays = 6;
  // Returns the counter of the way.
  std::uint64_t& Change(std::uint64_t way, Bytes& datagram) {
    switch (way) {
      case 0:
        for (std::uint64_t i = 0; i <= prng_.Below(8); ++i) {
          datagram[prng_.Below(datagram.size())] ^= static_cast<std::byte>(1u << prng_.Below(8));
        }
        return report_.flipped;
      case 1:
        datagram.resize(prng_.Below(datagram.size()));
        return report_.truncated;
      case 2:
        datagram.resize(datagram.size() + 1 + prng_.Below(kBytesMax - datagram.size()),
                        static_cast<std::byte>(prng_.Below(256)));
        return report_.extended;
      case 3:
        MutateField(prng_, datagram);
        return report_.edited;
      case 4:
        MutateOnce(prng_, datagram, kBytesMax);
        return report_.mixed;
      default:
        datagram.resize(prng_.Below(kBytesMax));
        for (std::byte& byte : datagram) byte = static_cast<std::byte>(prng_.Below(256));
        return report_.random;
    }
  }

  // Datagrams that are genuine, but at the wrong place or time.
  std::optional<Sent> MakeUnchanged(Sent sent, bool recorded) {
    const std::uint64_t kind = prng_.Below(6);
    if (kind == 0) {
      if (!recorded) return std::nullopt;
      ++report_.replayed;
      return sent;
    }
    if (kind == 1) {
      ++report_.misdirected;
      sent.to = static_cast<std::uint16_t>(kRanks - sent.from - sent.to);
      return sent;
    }
    if (kind == 2) {
      ++report_.reflected;
      sent.datagram[kSourceAt] = static_cast<std::byte>(sent.to);
      std::swap(sent.from, sent.to);
      return sent;
    }
    const std::size_t world = kind - 3;
    const std::vector<Sent>& elsewhere = elsewhere_[world];
    ++*std::array{&report_.other_session, &report_.other_lane, &report_.other_key}[world];
    Sent other = elsewhere[prng_.Below(elsewhere.size())];
    // Half of them with the right session in the header.
    if (prng_.Below(2) == 0) CopyField(sent.datagram, kSessionAt, 4, other.datagram);
    return other;
  }

  ForgeReport Report() {
    report_.calls_completed = ranks_.calls_completed();
    report_.calls_failed = ranks_.calls_failed();
    report_.wrong_sums = ranks_.wrong_sums();
    for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
      report_.memory_bytes_left += ranks_.endpoint(rank).memory_bytes();
      const Counters& counters = ranks_.endpoint(rank).counters();
#define OPTIREDUCE_ADD_COUNTER(name, meaning) report_.refused.name += counters.name;
      OPTIREDUCE_COUNTERS(OPTIREDUCE_ADD_COUNTER)
#undef OPTIREDUCE_ADD_COUNTER
    }
    return report_;
  }

  Prng prng_;
  Ranks ranks_;
  std::array<Ranks, 3> others_;
  std::array<std::vector<Sent>, 3> elsewhere_;
  std::vector<Sent> recorded_;
  ForgeReport report_;
};

}  // namespace

ForgeReport Forge(std::uint64_t count, std::uint64_t seed, Protection protection) {
  OR_CHECK(protection != Protection::kNone);
  return Forger(seed, protection).Run(count);
}

}  // namespace optireduce
