#include "ffi/protocol/detectors/wait_monitor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ffi/protocol/detectors/mismatch_detector.h"
#include "ffi/protocol/session/error_text.h"

namespace optireduce {

WaitingCall WaitMonitor::WaitingFor(const Exchange& exchange) const {
  const Collective& collective = exchange.collective();
  // A rank without a shard gets no contributions: the reports of the others tell who is in the
  // call.
  const bool owns = collective.layout.SegmentsOf(collective.self) > 0;
  const bool awaits_call = !owns && exchange.policy().SumsNeedAll();
  const auto holds_up = [&](MemberIndex member, bool contributed) {
    if (contributed) return exchange.WaitsFor(member);
    return awaits_call ? !exchange.heard(member) : exchange.reduce_scatter().Awaits(member);
  };
  // Results wait for the slowest contribution: only when all of these are here, their owners are
  // the ones to be asked.
  const bool contributed = std::ranges::none_of(
      collective.others, [&](MemberIndex member) { return holds_up(member, false); });
  WaitingCall call{.token = exchange.program().token(),
                   .sequence = exchange.call().sequence,
                   .ranks = {},
                   .absent = {}};
  for (const MemberIndex member : collective.others) {
    if (!holds_up(member, contributed)) continue;
    call.ranks.push_back(collective.RankOf(member));
    if (!exchange.heard(member)) call.absent.push_back(collective.RankOf(member));
  }
  return call;
}

// ---- When to look.

void WaitMonitor::AddAgain(Instant now, const Exchange& exchange) {
  if (exchange.waiting()) LookAt(ExpiresAt(exchange.program().called_at()));
  LookAgain(now);
}

void WaitMonitor::LookAgain(Instant now) {
  const EndpointOptions& options = session_.options;
  LookAt(now + std::min({kReportInterval, options.peer_timeout / kSignsPerTimeout,
                         options.mismatch_timeout / kSignsPerTimeout}));
}

std::vector<CallId> WaitMonitor::PopDue(Instant now, bool held) {
  std::vector<CallId> due;
  if (now < next_) return due;
  next_ = kNever;
  for (const auto& [call, open] : session_.calls) {
    if (Waits(open.exchange, held)) due.push_back(call);
  }
  return due;
}

// ---- The bound.

Instant WaitMonitor::ExpiresAt(Instant called_at) const {
  const Duration timeout = session_.options.call_timeout;
  return timeout == Duration::zero() ? kNever : SaturatingAdd(called_at, timeout);
}

std::string WaitMonitor::LastSignOf(Instant now, Rank rank) const {
  const Collective* newest = nullptr;
  Collective::Sign sign{};
  session_.directory.ForEach([&](const Collective& collective) {
    const auto member = collective.MemberOf(rank);
    if (!member || !collective.newest_call[member->index()]) return;
    const Collective::Sign& other = *collective.newest_call[member->index()];
    if (newest != nullptr && other.at <= sign.at) return;
    newest = &collective;
    sign = other;
  });
  const Instant heard = session_.peers[rank]->last_heard;
  std::string text = "rank " + std::to_string(rank.value()) + " (";
  text += heard == Instant{} ? "never heard" : "heard " + RoundedSeconds(now - heard) + " ago";
  if (newest == nullptr) return text + ", it has called nothing)";
  return text + ", it last called " + Describe(newest->spec, sign.sequence) + ", " +
         RoundedSeconds(now - sign.at) + " ago)";
}

std::vector<Rank> WaitMonitor::Uncalled(const Exchange& exchange) const {
  const Collective& collective = exchange.collective();
  std::vector<Rank> ranks;
  for (const Rank rank : collective.spec.members) {
    const bool waits = rank == session_.options.rank || exchange.heard(*collective.MemberOf(rank));
    if (!waits && !session_.peers[rank]->gone()) ranks.push_back(rank);
  }
  return ranks.empty() ? WaitingFor(exchange).ranks : ranks;
}

Status WaitMonitor::WhyExpired(Instant now, const Exchange& exchange) const {
  if (!exchange.waiting() || now < ExpiresAt(exchange.program().called_at())) return {};
  const Collective& collective = exchange.collective();
  Blame blame{.cause = Cause::kCallTimeout, .ranks = Uncalled(exchange)};
  std::string whom;
  for (const Rank rank : blame.ranks) {
    whom += (whom.empty() ? "" : "; ") + LastSignOf(now, rank);
  }
  return {StatusCode::kDeadlineExceeded,
          "jax_optireduce: " + Describe(collective.spec, exchange.call().sequence) +
              " has waited " + RoundedSeconds(now - exchange.program().called_at()) +
              " (call_timeout_s) for " + whom +
              ". A process that is heard is alive: look at what its program does (py-spy dump), or "
              "give a longer call_timeout_s",
          std::move(blame)};
}

}  // namespace optireduce
