#include "ffi/protocol/membership/membership_mailbox.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

namespace optireduce {
namespace {

// Chosen: a removed rank needs the decision only once.
constexpr Duration kDecisionInterval = std::chrono::milliseconds(100);

constexpr std::size_t Index(MembershipKind kind) { return static_cast<std::size_t>(kind) - 1; }

std::uint16_t PartsOf(std::size_t calls) {
  return static_cast<std::uint16_t>(
      std::max<std::size_t>((calls + kMembershipCallsMax - 1) / kMembershipCallsMax, 1));
}

}  // namespace

MembershipMailbox::MembershipMailbox(Rank self, std::uint16_t world_size, std::uint16_t lanes)
    : self_(self), ranks_(world_size) {
  for (Other& other : ranks_) other.paths.resize(lanes);
}

void MembershipMailbox::Queue(std::uint16_t lane, Rank to, MembershipKind kind) {
  Due& due = path(lane, to).due[Index(kind)];
  if (to != self_ && !due.any) due = {.any = true};
}

void MembershipMailbox::QueueAll(std::span<const Rank> ranks, MembershipKind kind) {
  for (const Rank rank : ranks) {
    for (std::uint16_t lane = 0; lane < ranks_[rank.index()].paths.size(); ++lane) {
      Queue(lane, rank, kind);
    }
  }
}

void MembershipMailbox::QueueDecision(Instant now, std::uint16_t lane, Rank to) {
  std::optional<Instant>& at = path(lane, to).decision_at;
  if (at && now - *at < kDecisionInterval) return;
  at = now;
  Queue(lane, to, MembershipKind::kDecision);
}

std::size_t MembershipMailbox::EncodePart(Draft& draft, Due& due, std::span<std::byte> out) {
  MembershipMessage& message = draft.message;
  message.parts = PartsOf(draft.calls.size());
  // The contents may have changed since the first part.
  message.part = static_cast<std::uint16_t>(due.part++ % message.parts);
  due.any = message.part + 1 < message.parts;
  const auto calls = draft.calls.subspan(message.part * kMembershipCallsMax);
  const auto end = calls.begin() + std::min<std::ptrdiff_t>(std::ssize(calls), kMembershipCallsMax);
  message.calls.assign(calls.begin(), end);
  return EncodeMembership(message, out);
}

std::optional<MembershipMessage> MembershipMailbox::Assemble(Rank from, MembershipMessage part) {
  if (part.parts == 1) return part;
  Assembly& assembly = ranks_[from.index()].assemblies[Index(part.kind)];
  const auto identity = [](const MembershipMessage& message) {
    return std::tuple(message.view, message.ballot, message.accepted);
  };
  if (assembly.seen.empty() || identity(part) > identity(assembly.message)) {
    assembly.message = part;
    assembly.message.calls.clear();
    assembly.seen.assign(part.parts, false);
    assembly.missing = part.parts;
  }
  if (identity(part) != identity(assembly.message) || part.parts != assembly.seen.size()) {
    return std::nullopt;
  }
  std::vector<CallId>& calls = assembly.message.calls;
  if (!assembly.seen[part.part]) {
    assembly.seen[part.part] = true;
    --assembly.missing;
    calls.insert(calls.end(), part.calls.begin(), part.calls.end());
  }
  if (assembly.missing > 0) return std::nullopt;
  std::ranges::sort(calls);
  if (std::ranges::adjacent_find(calls, {}, &CallId::collective) != calls.end()) {
    return std::nullopt;
  }
  MembershipMessage message = assembly.message;
  message.part = 0;
  message.parts = 1;
  return message;
}

void MembershipMailbox::Clear() {
  for (Other& other : ranks_) {
    std::ranges::fill(other.paths, Path());
    other.assemblies = {};
  }
}

}  // namespace optireduce
