// The messages of the membership between this rank and each other one, over each lane: which are
// due, and their division into parts. A message is made when it is sent, of the state at that time.

#ifndef FFI_PROTOCOL_MEMBERSHIP_MEMBERSHIP_MAILBOX_H_
#define FFI_PROTOCOL_MEMBERSHIP_MEMBERSHIP_MAILBOX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/wire/membership_message.h"

namespace optireduce {

class MembershipMailbox {
 public:
  struct Outgoing {
    Rank to;
    std::size_t bytes = 0;
  };
  // A message, and its calls, which may take several parts.
  struct Draft {
    MembershipMessage message;
    std::span<const CallId> calls{};
  };

  MembershipMailbox(Rank self, std::uint16_t world_size, std::uint16_t lanes);

  std::uint16_t world_size() const { return static_cast<std::uint16_t>(ranks_.size()); }

  // A message is due. One to this rank is none.
  void Queue(std::uint16_t lane, Rank to, MembershipKind kind);
  // Over all lanes.
  void QueueAll(std::span<const Rank> ranks, MembershipKind kind);
  // A decision, at most once in an interval.
  void QueueDecision(Instant now, std::uint16_t lane, Rank to);
  // Writes the next part that is due over the lane; the ranks take turns. `make(to, kind)` returns
  // the Draft, or none if the message is obsolete. `out` holds kMembershipBytesMax.
  template <typename Make>
  std::optional<Outgoing> Poll(std::uint16_t lane, std::span<std::byte> out, Make make) {
    for (std::size_t turn = 0; turn < ranks_.size(); ++turn) {
      const Rank to(static_cast<std::uint16_t>((next_ + turn) % ranks_.size()));
      for (std::size_t k = 0; k < kKinds; ++k) {
        Due& due = path(lane, to).due[k];
        if (!due.any) continue;
        due.any = false;
        auto draft = make(to, static_cast<MembershipKind>(k + 1));
        if (!draft) continue;
        next_ = (to.index() + 1) % ranks_.size();
        return Outgoing{.to = to, .bytes = EncodePart(*draft, due, out)};
      }
    }
    return std::nullopt;
  }

  // A part has come. The whole message once all parts are there.
  std::optional<MembershipMessage> Assemble(Rank from, MembershipMessage part);
  // The members have changed: nothing is due, and nothing incomplete is kept.
  void Clear();

 private:
  // Source: MembershipKind.
  static constexpr std::size_t kKinds = 6;
  struct Due {
    bool any = false;
    std::uint16_t part = 0;  // the next one
  };
  struct Path {
    std::array<Due, kKinds> due;
    std::optional<Instant> decision_at;  // the time when the newest decision was last queued
  };
  // A message of which some parts have come.
  struct Assembly {
    MembershipMessage message;  // the calls of all parts so far
    std::vector<bool> seen;
    std::size_t missing = 0;
  };
  struct Other {
    std::vector<Path> paths;                  // one for each lane
    std::array<Assembly, kKinds> assemblies;  // one for each kind
  };

  Path& path(std::uint16_t lane, Rank rank) { return ranks_[rank.index()].paths[lane]; }
  static std::size_t EncodePart(Draft& draft, Due& due, std::span<std::byte> out);

  Rank self_;
  std::vector<Other> ranks_;
  std::size_t next_ = 0;  // the rank that Poll() looks at first
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_MEMBERSHIP_MEMBERSHIP_MAILBOX_H_
