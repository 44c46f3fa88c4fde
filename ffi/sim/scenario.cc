#include "ffi/sim/scenario.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <utility>
#include <vector>

namespace optireduce {
namespace {

struct Field {
  std::string_view name;
  std::uint64_t Scenario::* member;
  std::uint64_t default_value;
  std::uint64_t least;
  std::uint64_t most;
  std::string_view meaning;
};

constexpr Field kFields[] = {
#define OPTIREDUCE_DESCRIBE_FIELD(name, default_value, least, most, meaning) \
  {#name, &Scenario::name, default_value, least, most, meaning},
    OPTIREDUCE_SCENARIO_FIELDS(OPTIREDUCE_DESCRIBE_FIELD)
#undef OPTIREDUCE_DESCRIBE_FIELD
};

constexpr std::string_view kElementTypeWords[] = {"float32", "bfloat16", "float16",
                                                  "float64", "int32",    "mixed"};
constexpr std::string_view kWireFormatWords[] = {"float32", "bfloat16", "int8",
                                                 "auto",    "float4",   "mixed"};
constexpr std::string_view kModeWords[] = {"exact", "lossy", "mixed", "bounded", "agreed", "any"};
constexpr std::string_view kStagesWords[] = {"both", "reduce_scatter", "all_gather", "mixed"};
constexpr std::string_view kFillWords[] = {"integers", "floats"};
constexpr std::string_view kMismatchWords[] = {"none",     "fingerprint", "name",     "extra_call",
                                               "elements", "stages",      "lone_call"};

// The words of a field, in the order of their values; empty for a number.
std::span<const std::string_view> WordsOf(std::string_view name) {
  if (name == "element_type") return kElementTypeWords;
  if (name == "wire_format") return kWireFormatWords;
  if (name == "mode") return kModeWords;
  if (name == "stages") return kStagesWords;
  if (name == "fill") return kFillWords;
  if (name == "mismatch") return kMismatchWords;
  return {};
}

// The Hamming distance of two words, plus the difference of their lengths; sufficient to find the
// intended key.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::size_t distance = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) distance += a[i] != b[i];
  return distance;
}

const Field* Find(std::string_view name) {
  for (const Field& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

Status UnknownKey(std::string_view key) {
  const auto closer = [key](const Field& a, const Field& b) {
    return Distance(a.name, key) < Distance(b.name, key);
  };
  const Field& nearest = *std::min_element(std::begin(kFields), std::end(kFields), closer);
  return InvalidArgument("a scenario has no field '" + std::string(key) + "'; did you mean '" +
                         std::string(nearest.name) + "'? `--help` lists them all.");
}

Status Set(Scenario& scenario, std::string_view key, std::string_view value) {
  const Field* field = Find(key);
  if (field == nullptr) return UnknownKey(key);
  const std::span<const std::string_view> words = WordsOf(key);
  const auto word = std::find(words.begin(), words.end(), value);
  if (word != words.end()) {
    scenario.*(field->member) = static_cast<std::uint64_t>(word - words.begin());
    return {};
  }
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool read = error == std::errc() && end == value.data() + value.size();
  if (!words.empty() || !read || number < field->least || number > field->most) {
    return InvalidArgument("the scenario's " + std::string(key) + " cannot be '" +
                           std::string(value) + "'; write " +
                           (words.empty() ? "a whole number from " + std::to_string(field->least) +
                                                " to " + std::to_string(field->most)
                                          : "one of: " + std::string(field->meaning)) +
                           ".");
  }
  scenario.*(field->member) = number;
  return {};
}

Status ValidateGroups(const Scenario& scenario) {
  if (scenario.groups > 1 && (scenario.ranks % scenario.groups != 0 || scenario.sequential == 0 ||
                              scenario.collectives > 1 || scenario.mismatch != 0)) {
    return InvalidArgument(
        "groups= needs a number of ranks that it divides, sequential=1, collectives=1 "
        "and mismatch=none.");
  }
  const std::uint64_t of_group = scenario.ranks / scenario.groups;
  if (scenario.group_stages != 0 &&
      (scenario.groups == 1 || scenario.elements % scenario.ranks != 0 ||
       scenario.sim_mode() != SimMode::kExact || scenario.sim_stages() != SimStages::kBoth ||
       of_group == 1)) {
    return InvalidArgument(
        "group_stages=1 needs groups of two ranks or more, elements that the ranks divide, "
        "mode=exact and stages=both.");
  }
  return {};
}

// Ranks and lanes.
Status ValidateRanks(const Scenario& scenario) {
  const std::uint64_t named =
      std::max({scenario.stop_rank, scenario.leave_rank, scenario.cancel_rank, scenario.cut_rank,
                scenario.freeze_rank, scenario.mismatch_rank, scenario.slow_rank,
                scenario.cross_traffic_rank, scenario.lane_cut_rank, scenario.give_up_rank,
                scenario.hang_rank, scenario.mtu_rank, scenario.mtu_to % 64,
                std::uint64_t(std::bit_width(scenario.part_side) - 1)});
  if (named >= scenario.ranks) {
    return InvalidArgument("the scenario names rank " + std::to_string(named) +
                           ", but has only ranks=" + std::to_string(scenario.ranks) +
                           "; ranks count from 0.");
  }
  if (scenario.ranks % scenario.ranks_per_slice != 0) {
    return InvalidArgument("ranks_per_slice=" + std::to_string(scenario.ranks_per_slice) +
                           " must divide ranks=" + std::to_string(scenario.ranks) + ".");
  }
  if (scenario.lane_cut_lane >= scenario.lanes) {
    return InvalidArgument("the scenario names lane " + std::to_string(scenario.lane_cut_lane) +
                           ", but has only lanes=" + std::to_string(scenario.lanes) +
                           "; lanes count from 0.");
  }
  if (scenario.ranks > 64 && scenario.part_for_us > 0) {
    return InvalidArgument("part_for_us= needs ranks=64 or fewer, got ranks=" +
                           std::to_string(scenario.ranks) + ": part_side has a bit for each.");
  }
  return {};
}

Status ValidateAbsent(const Scenario& scenario) {
  if (scenario.absent == 0) return {};
  if (scenario.ranks > 64 || std::cmp_greater(std::bit_width(scenario.absent), scenario.ranks) ||
      2 * scenario.present() <= scenario.ranks) {
    return InvalidArgument("absent= needs ranks=64 or fewer, and leaves more than half of them.");
  }
  for (std::uint16_t rank = 0; rank < scenario.ranks; ++rank) {
    const Rank of(rank);
    const Rank first = scenario.slices().SliceOf(of).front();
    if (scenario.IsAbsent(of) != scenario.IsAbsent(first)) {
      return InvalidArgument("absent= has all ranks of a slice or none, and rank " +
                             std::to_string(rank) + " differs from rank " +
                             std::to_string(first.value()) + " of its slice.");
    }
  }
  // Other collectives wait for the absent ranks, and refuse every call.
  if (scenario.sim_mode() != SimMode::kBounded || scenario.sim_stages() != SimStages::kBoth ||
      scenario.groups > 1 || scenario.mismatch != 0) {
    return InvalidArgument("absent= needs mode=bounded, stages=both, groups=1 and mismatch=none.");
  }
  return {};
}

Status ValidateNetwork(const Scenario& scenario) {
  // No fault of such a run would fail a tag, and endpoints behave the same without tags.
  if (scenario.unprotected != 0 &&
      std::max({scenario.corrupt_ppm, scenario.truncate_ppm, scenario.extend_ppm,
                scenario.foreign_ppm, scenario.garbage_ppm, scenario.misdirect_ppm}) > 0) {
    return InvalidArgument(
        "unprotected=1 needs a network that neither changes datagrams nor makes any: "
        "corrupt_ppm=, truncate_ppm=, extend_ppm=, foreign_ppm=, garbage_ppm= and misdirect_ppm= "
        "must be 0.");
  }
  return {};
}

Status ValidateMismatch(const Scenario& scenario) {
  if (scenario.mismatch == 0) return {};
  const bool lone = scenario.sim_mismatch() == SimMismatch::kLoneCall;
  const SimMode mode = lone ? SimMode::kBounded : SimMode::kExact;
  if (scenario.ranks < 2 || scenario.collectives < 2 || scenario.subsets != 0 ||
      scenario.sim_mode() != mode) {
    return InvalidArgument(
        "mismatch= needs at least ranks=2 collectives=2, mode=exact (lone_call: bounded) and "
        "subsets=0.");
  }
  if (scenario.sequential == 0 || scenario.shuffled != 0) {
    return InvalidArgument(
        "mismatch= needs sequential=1 shuffled=0: only ranks whose programs run in "
        "order wait for each other in different calls.");
  }
  return {};
}

// Modes and the order of calls.
Status ValidatePrograms(const Scenario& scenario) {
  // 16: a float32 holds every sum of 16 powers of two, which identify the contributions.
  const bool lossy = scenario.sim_mode() == SimMode::kLossy ||
                     scenario.sim_mode() == SimMode::kMixed || scenario.sim_mode() == SimMode::kAny;
  if (lossy && scenario.ranks > 16) {
    return InvalidArgument("mode=lossy, mixed and any need ranks=16 or fewer, got ranks=" +
                           std::to_string(scenario.ranks) + ".");
  }
  // Numbers that this rank has skipped are added.
  if (scenario.catches_up() && scenario.sequence_first > kSimSequenceMax) {
    return InvalidArgument(
        "three or more ranks need sequence_first=" + std::to_string(kSimSequenceMax) + " or less.");
  }
  // A call that only one program jumps to would be the newest call of all.
  if (scenario.catches_up() && scenario.skip_ppm > 0) {
    return InvalidArgument("three or more ranks need skip_ppm=0.");
  }
  if (scenario.represents_absent() && (scenario.removals_max() > 0 || scenario.loses_data())) {
    return InvalidArgument(
        "means=1 with three or more ranks is not checked where data may be lost.");
  }
  if (scenario.sequential != 0 && scenario.shuffled != 0) {
    return InvalidArgument("sequential=1 shuffled=1 deadlocks every rank; choose one of them.");
  }
  if (scenario.at_once > 0 &&
      (scenario.sequential == 0 || scenario.groups > 1 || scenario.mismatch != 0 ||
       scenario.meet_calls > 0 || scenario.calls == 1)) {
    return InvalidArgument(
        "at_once= needs calls=2 or more, sequential=1, groups=1, mismatch=none and meet_calls=0.");
  }
  // A rank that does not come would stop all others.
  if (scenario.meet_calls > 0 &&
      (scenario.absent != 0 || scenario.sequential == 0 || scenario.collectives > 1 ||
       scenario.groups > 1 || !scenario.is_whole())) {
    return InvalidArgument(
        "meet_calls= needs sequential=1, collectives=1, groups=1, absent=0 and no failure of a "
        "rank or path.");
  }
  if (scenario.settle_calls > 0 &&
      (scenario.sim_mode() != SimMode::kBounded || scenario.sequential == 0 ||
       scenario.groups > 1 || scenario.lanes > 1 || scenario.has_failure() ||
       scenario.late_budget_ppm + scenario.think_us + scenario.late_us + scenario.overlap > 0)) {
    return InvalidArgument(
        "settle_calls= needs mode=bounded, sequential=1, groups=1, lanes=1, think_us=0, late_us=0, "
        "overlap=0, late_budget_ppm=0 and no failure of a rank or path.");
  }
  return {};
}

using Items = std::vector<std::pair<std::string_view, std::string_view>>;

Result<Items> ReadItems(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r\n";
  Items items;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
    if (line.empty()) break;
    const std::string_view item = line.substr(0, line.find_first_of(kSpace));
    line.remove_prefix(item.size());
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return InvalidArgument("a scenario is written as key=value pairs, got '" + std::string(item) +
                             "'; for example: seed=7 ranks=4 loss_ppm=30000");
    }
    items.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  return items;
}

// The scenario of the seed and size in the line, at any position.
Result<Scenario> ReadOrigin(const Items& items) {
  Scenario scenario;
  std::string_view size;
  for (const auto& [key, value] : items) {
    if (key == "size") size = value;
    if (key != "seed") continue;
    if (Status set = Set(scenario, key, value); !set.ok()) return set;
  }
  if (size.empty()) return scenario;
  if (size == "small") return MakeScenario(scenario.seed, ScenarioSize::kSmall);
  if (size == "medium") return MakeScenario(scenario.seed, ScenarioSize::kMedium);
  return InvalidArgument("the scenario's size cannot be '" + std::string(size) +
                         "'; write small or medium, or leave it out.");
}

}  // namespace

Status Validate(const Scenario& scenario) {
  for (const auto validate : {ValidateRanks, ValidateAbsent, ValidateGroups, ValidateNetwork,
                              ValidateMismatch, ValidatePrograms}) {
    if (Status valid = validate(scenario); !valid.ok()) return valid;
  }
  return {};
}

std::string Print(const Scenario& scenario) {
  std::string line;
  for (const Field& field : kFields) {
    const std::uint64_t value = scenario.*(field.member);
    if (value == field.default_value && field.name != "seed") continue;
    const std::span<const std::string_view> words = WordsOf(field.name);
    if (!line.empty()) line += ' ';
    line += std::string(field.name) + '=' +
            (words.empty() ? std::to_string(value) : std::string(words[value]));
  }
  return line;
}

Result<Scenario> ParseScenario(std::string_view line) {
  Result<Items> items = ReadItems(line);
  if (!items.ok()) return items.status();
  Result<Scenario> scenario = ReadOrigin(items.value());
  if (!scenario.ok()) return scenario;
  for (const auto& [key, value] : items.value()) {
    if (key == "size") continue;
    if (Status set = Set(scenario.value(), key, value); !set.ok()) return set;
  }
  if (Status valid = Validate(scenario.value()); !valid.ok()) return valid;
  return scenario;
}

std::string DescribeScenarioFields() {
  std::string text;
  for (const Field& field : kFields) {
    const std::span<const std::string_view> words = WordsOf(field.name);
    text += "  " + std::string(field.name) + " (" +
            (words.empty() ? std::to_string(field.default_value)
                           : std::string(words[field.default_value])) +
            "): " + std::string(field.meaning) + "\n";
  }
  return text;
}

}  // namespace optireduce
