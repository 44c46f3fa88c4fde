// Schedules: a transfer is the tuple (from, to, shard, "reduce" or "copy").

#include "ffi/schedule/schedule.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "ffi/schedule/tar.h"
#include "ffi/schedule/verify.h"
#include "tests/native/binding.h"

namespace nb = nanobind;

namespace optireduce::testing {
namespace OR_FILE {

using TransferTuple = std::tuple<std::uint16_t, std::uint16_t, std::uint16_t, std::string>;
using Rounds = std::vector<std::vector<TransferTuple>>;

Rounds TarRounds(std::uint16_t world_size, std::uint16_t incast) {
  Rounds rounds;
  for (const Round& round : TarSchedule(world_size, incast).rounds) {
    std::vector<TransferTuple>& transfers = rounds.emplace_back();
    for (const Transfer& t : round) {
      transfers.emplace_back(t.from.value(), t.to.value(), t.shard.value(),
                             t.op == Op::kReduce ? "reduce" : "copy");
    }
  }
  return rounds;
}

// Empty if the schedule is correct.
std::string Verify(std::uint16_t world_size, std::uint16_t incast, const Rounds& rounds) {
  Schedule schedule{.world_size = world_size, .incast = incast, .rounds = {}};
  for (const std::vector<TransferTuple>& transfers : rounds) {
    Round& round = schedule.rounds.emplace_back();
    for (const auto& [from, to, shard, op] : transfers) {
      if (op != "reduce" && op != "copy") throw nb::value_error("op must be reduce or copy");
      round.push_back({.from = MemberIndex(from),
                       .to = MemberIndex(to),
                       .shard = MemberIndex(shard),
                       .op = op == "reduce" ? Op::kReduce : Op::kCopy});
    }
  }
  return VerifySchedule(schedule).message();
}

// Empty if the schedule is correct. Avoids the rounds as Python objects, which are slow to create.
std::string VerifyTar(std::uint16_t world_size, std::uint16_t incast) {
  return VerifySchedule(TarSchedule(world_size, incast)).message();
}

std::vector<std::uint16_t> SendOrder(std::uint16_t world_size, std::uint16_t member) {
  std::vector<std::uint16_t> order;
  for (const MemberIndex peer : TarSendOrder(world_size, MemberIndex(member))) {
    order.push_back(peer.value());
  }
  return order;
}

void Bind(nb::module_& m) {
  m.def("tar_rounds", &TarRounds, nb::arg("world_size"), nb::arg("incast"));
  m.def("tar_send_order", &SendOrder, nb::arg("world_size"), nb::arg("member"));
  m.def("verify_schedule", &Verify, nb::arg("world_size"), nb::arg("incast"), nb::arg("rounds"));
  m.def("verify_tar", &VerifyTar, nb::arg("world_size"), nb::arg("incast"));
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
