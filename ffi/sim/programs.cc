#include "ffi/sim/programs.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/sim/call_values.h"

namespace optireduce {
namespace {

// Chosen: more than the successive removals of a run, each of which may end several drains.
constexpr std::size_t kDrainsRepeatedMax = 64;

}  // namespace

Programs::Programs(const Scenario& scenario, const Workload& workload, Prng& prng, Checker& checker,
                   Trace& trace, ScheduleCallFunction schedule)
    : scenario_(scenario),
      workload_(workload),
      prng_(prng),
      checker_(checker),
      trace_(trace),
      schedule_(std::move(schedule)) {
  for (std::uint16_t r = 0; r < scenario.ranks; ++r) {
    Program made;
    for (std::vector<SimCall>& calls : workload.ProgramOf(Rank(r))) {
      made.chains.push_back({.calls = std::move(calls), .next = 0, .token = {}});
    }
    made.chains_left = made.chains.size();
    made.calls_ended.resize(workload.collectives().size());
    programs_.push_back(std::move(made));
  }
  for (std::size_t c = 0; c < workload.collectives().size(); ++c) {
    calls_wanted_.push_back(workload.CallsOf(c));
  }
}

void Programs::Start() {
  for (std::uint16_t r = 0; r < scenario_.ranks; ++r) {
    const Duration skew = Random(scenario_.start_skew_us);
    // A rank that is absent has none.
    std::size_t chains = program(Rank(r)).chains.size();
    if (scenario_.at_once > 0) chains = std::min<std::size_t>(chains, 1);
    for (std::size_t chain = 0; chain < chains; ++chain) {
      ScheduleCall(Instant{}, Instant{}, Rank(r), chain, skew);
    }
  }
}

void Programs::ScheduleCall(Instant now, Instant from, Rank rank, std::size_t chain,
                            Duration pause) {
  pause += Microseconds(scenario_.compute_us);
  const bool straggles = scenario_.straggle_end_us == 0 || now < At(scenario_.straggle_end_us);
  if (prng_.Chance(static_cast<std::uint32_t>(scenario_.straggle_ppm)) && straggles) {
    pause += Random(scenario_.straggle_us);
  }
  const bool first = program(rank).chains[chain].IsFirstOfNumber();
  // A call in groups is late once, not in each of its parts.
  const bool once = scenario_.late_once != 0 || scenario_.groups > 1;
  const bool comes_late = rank.index() + 1 == scenario_.ranks && (first || !once);
  const Duration late = comes_late ? Microseconds(scenario_.late_us) : Duration{};
  Instant at = std::max(now, from + pause + late);
  if (scenario_.period_us > 0 && first) {
    const Duration period = Microseconds(scenario_.period_us);
    const Instant others = std::max(now, from + pause);
    at = Instant{} + (others - Instant{} + period - Duration(1)) / period * period + late;
  }
  Schedule(at, rank, chain);
}

void Programs::Schedule(Instant at, Rank rank, std::size_t chain) {
  checker_.Computing();
  schedule_(at, rank, chain);
}

std::optional<SimCall> Programs::NextCall(Rank rank, std::size_t chain) const {
  const Chain& called = programs_[rank.index()].chains[chain];
  return called.ended() ? std::nullopt : std::optional(called.calls[called.next]);
}

std::optional<Status> Programs::Submitted(Instant now, Rank rank, std::size_t chain,
                                          std::uint64_t token, const Status& status) {
  if (!status.ok()) return End(rank, status);
  Chain& called = program(rank).chains[chain];
  called.token = token;
  called.submitted = now;
  if (called.IsFirstOfNumber()) called.begun = now;
  return std::nullopt;
}

std::optional<Status> Programs::Done(Instant now, Rank rank, const CallDone& done) {
  // An interrupted program continues with its next call, and so do the others if the interruption
  // is the only failure.
  const bool interrupted =
      done.status.code() == StatusCode::kCancelled ||
      (scenario_.only_gives_up() && done.status.code() == StatusCode::kAborted);
  if (!done.status.ok() && !interrupted) return End(rank, done.status);
  Program& caller = program(rank);
  const auto chain = std::ranges::find(caller.chains, done.token, &Chain::token);
  // The program has ended meanwhile.
  if (chain == caller.chains.end() || chain->ended()) return std::nullopt;
  chain->token.reset();
  const SimCall call = chain->calls[chain->next];
  times_.Add(workload_.StepOf(call), now - chain->begun, done.stats);
  caller.calls_ended[call.collective] = call.index + 1;
  RecordDrain(now, rank, call, done);
  const Instant from = scenario_.overlap != 0 ? chain->submitted : now;
  return AdvanceChain(now, from, rank, static_cast<std::size_t>(chain - caller.chains.begin()));
}

std::optional<Status> Programs::GaveUp(Instant now, Rank rank, std::size_t chain) {
  const Chain& called = program(rank).chains[chain];
  const SimCall call = called.calls[called.next];
  program(rank).calls_ended[call.collective] = call.index + 1;
  return AdvanceChain(now, now, rank, chain);
}

std::optional<Status> Programs::AdvanceChain(Instant now, Instant from, Rank rank,
                                             std::size_t chain) {
  Program& caller = program(rank);
  Chain& called = caller.chains[chain];
  ++called.next;
  if (called.ended()) {
    const bool starts_rest = scenario_.at_once > 0 && chain == 0;
    for (std::size_t c = 1; starts_rest && c < caller.chains.size(); ++c) {
      Schedule(now, rank, c);
    }
    return --caller.chains_left == 0 ? End(rank, {}) : std::nullopt;
  }
  if (scenario_.meet_calls > 0 && called.next % scenario_.meet_calls == 0) {
    Meet(now, rank, chain);
  } else {
    ScheduleCall(now, from, rank, chain, Random(scenario_.think_us));
  }
  return std::nullopt;
}

void Programs::Meet(Instant now, Rank rank, std::size_t chain) {
  met_.push_back(rank);
  if (met_.size() < programs_.size()) return;
  for (const Rank each : std::exchange(met_, {})) {
    ScheduleCall(now, now, each, chain, Random(scenario_.think_us));
  }
}

void Programs::RecordDrain(Instant now, Rank rank, SimCall call, const CallDone& done) {
  const SimCollective& collective = workload_.collectives()[call.collective];
  if (!scenario_.goes_on() || scenario_.IsRemovable(rank) || IsWhole(done.stats) ||
      !workload_.IsDrain(collective, call)) {
    return;
  }
  trace_.Act(now, rank, "drains again", call.index + 1);
  std::size_t& wanted = calls_wanted_[call.collective];
  wanted = std::max(wanted, call.index + 2);
  if (wanted > workload_.CallsOf(call.collective) + kDrainsRepeatedMax) {
    checker_.Fail(now, rank, "it drains '" + collective.spec.name + "' again and again");
  }
}

void Programs::RepeatDrains(Instant now) {
  for (std::uint16_t r = 0; r < scenario_.ranks; ++r) {
    Program& each = program(Rank(r));
    if (each.stopped) continue;
    for (std::size_t c = 0; c < calls_wanted_.size(); ++c) {
      std::size_t& ended = each.calls_ended[c];
      if (ended < workload_.CallsOf(c) || ended >= calls_wanted_[c]) continue;
      ended = SIZE_MAX;  // no other drain before the program has ended
      each.chains.push_back(
          {.calls = {{.collective = c, .index = calls_wanted_[c] - 1}}, .next = 0, .token = {}});
      ++each.chains_left;
      ScheduleCall(now, now, Rank(r), each.chains.size() - 1, Random(scenario_.think_us));
    }
  }
}

std::optional<Status> Programs::End(Rank rank, const Status& why) {
  // Open calls still end; no new call begins.
  for (Chain& chain : program(rank).chains) chain.End();
  // A program that ends with an error exits, and its rank leaves. In scenarios with a mismatch of
  // all ranks it stays, so that the other ranks have to find the reason themselves.
  const bool all = scenario_.mismatch != 0 && scenario_.sim_mismatch() != SimMismatch::kLoneCall;
  const bool exits = !why.ok() && !all;
  if (!exits && scenario_.leave_at_end == 0) return std::nullopt;
  return why.ok() ? Status(StatusCode::kCancelled, "its program has ended") : why;
}

void Programs::Stop(Rank rank) {
  program(rank).stopped = true;
  for (Chain& chain : program(rank).chains) chain.End();
}

}  // namespace optireduce
