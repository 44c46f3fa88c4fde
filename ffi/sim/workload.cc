#include "ffi/sim/workload.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>

#include "ffi/base/check.h"
#include "ffi/base/prng.h"

namespace optireduce {
namespace {

// Chosen: any odd constant separates the hashes of neighbours.
constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15ull;

// Different uses of the seed must draw different numbers.
enum class Draw : std::uint64_t { kShape = 1, kOrder, kValue, kPattern, kSkip, kOneStage };

std::uint64_t With(std::uint64_t hash, std::uint64_t value) {
  return Mix(hash + kStride * (value + 1));
}

std::uint64_t HashOf(std::uint64_t seed, Draw draw, std::uint64_t a, std::uint64_t b) {
  return With(With(Mix(seed + kStride * static_cast<std::uint64_t>(draw)), a), b);
}

std::uint64_t Hash(std::uint64_t seed, Draw draw, std::uint64_t a, std::uint64_t b = 0,
                   std::uint64_t c = 0) {
  return With(HashOf(seed, draw, a, b), c);
}

float Bfloat16ToFloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t FloatToBfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

// Computes by arithmetic rather than by bits: slow, and independent of any production kernel, as a
// reference has to be.
double Float16ToDouble(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  double magnitude = 0;
  if (exponent == 0x1F) {
    magnitude = mantissa == 0 ? HUGE_VAL : std::nan("");
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t DoubleToFloat16(double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  // The midpoint between the largest number and its successor rounds to infinity.
  if (magnitude >= 65520.0) return static_cast<std::uint16_t>(sign | 0x7C00);
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const double steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  // A carry out of the mantissa raises the exponent, as it does in the format.
  const int bits = static_cast<int>(steps) + (exponent + 14) * 1024;
  return static_cast<std::uint16_t>(sign | bits);
}

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void Store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
}

// A float with a full mantissa, over enough binades for the order of additions to be visible.
double RandomFloat(ElementType type, std::uint64_t hash) {
  const double sign = (hash >> 63) != 0 ? -1 : 1;
  // Chosen: one in 64 is a zero of either sign.
  if ((hash & 63) == 0) return sign * 0.0;
  switch (type) {
    case ElementType::kFloat64: {
      const auto mantissa = static_cast<double>((hash >> 6) & ((1ull << 52) - 1));
      return sign * std::ldexp(mantissa + 0x1p52, static_cast<int>((hash >> 58) % 31) - 67);
    }
    case ElementType::kFloat16: {
      const auto mantissa = static_cast<double>((hash >> 6) & 0x3FF);
      return sign * std::ldexp(mantissa + 1024, static_cast<int>((hash >> 40) % 12) - 16);
    }
    case ElementType::kBfloat16: {
      const auto mantissa = static_cast<double>((hash >> 6) & 0x7F);
      return sign * std::ldexp(mantissa + 128, static_cast<int>((hash >> 40) % 40) - 27);
    }
    default: {
      const auto mantissa = static_cast<double>((hash >> 6) & 0x7FFFFF);
      return sign * std::ldexp(mantissa + 0x1p23, static_cast<int>((hash >> 40) % 40) - 43);
    }
  }
}

// Digits of base 4 that the type adds exactly. Source: 8, 11, 24 and 53 bits of precision, and 31
// without a sign.
std::size_t DigitsOf(ElementType type) {
  switch (type) {
    case ElementType::kBfloat16:
      return 4;
    case ElementType::kFloat16:
      return 5;
    case ElementType::kFloat32:
      return 12;
    case ElementType::kInt32:
      return 15;
    case ElementType::kFloat64:
      return 26;
    case ElementType::kComplex64:
    case ElementType::kComplex128:
      break;  // not drawn
  }
  FailCheck("known element type", __FILE__, __LINE__);
}

std::vector<Rank> SomeRanks(std::uint64_t ranks, bool subset, std::uint64_t hash) {
  Prng prng(hash);
  std::vector<Rank> members;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    if (!subset || prng.Below(2) == 0) members.push_back(Rank(static_cast<std::uint16_t>(rank)));
  }
  // A collective needs at least two members.
  for (std::uint16_t rank = 0; members.size() < std::min<std::size_t>(ranks, 2); ++rank) {
    if (std::ranges::find(members, Rank(rank)) == members.end()) members.push_back(Rank(rank));
  }
  std::ranges::sort(members);
  return members;
}

std::vector<std::uint64_t> CutLeaves(std::uint64_t elements, std::uint64_t leaves, Prng& prng) {
  std::vector<std::uint64_t> cuts{0, elements};
  for (std::uint64_t i = 1 + prng.Below(leaves); i > 1; --i) {
    cuts.push_back(prng.Below(elements + 1));
  }
  std::ranges::sort(cuts);
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 1; i < cuts.size(); ++i) sizes.push_back(cuts[i] - cuts[i - 1]);
  return sizes;
}

std::string Describe(const CollectiveSpec& spec) {
  return spec.name + ": " + std::string(NameOf(spec.element_type)) + "[" +
         std::to_string(spec.elements) + "] " + std::string(ModeOf(spec)) +
         (HasAllGather(spec) ? "" : " reduce_scatter") +
         (HasReduceScatter(spec) ? "" : " all_gather") +
         (Rounds(spec) ? " as " + std::string(NameOf(spec.wire_format)) : "");
}

SimMode DrawMode(SimMode of_scenario, Prng& prng) {
  constexpr SimMode kAny[] = {SimMode::kExact, SimMode::kLossy, SimMode::kBounded,
                              SimMode::kAgreed};
  if (of_scenario == SimMode::kMixed) return kAny[prng.Below(2)];
  if (of_scenario == SimMode::kAny) return kAny[prng.Below(std::size(kAny))];
  return of_scenario;
}

void SetPolicies(SimMode mode, CollectiveSpec& spec) {
  if (mode == SimMode::kLossy) spec.reduce_scatter = spec.all_gather = LatePolicy::kDrop;
  if (mode == SimMode::kBounded) spec.reduce_scatter = spec.all_gather = LatePolicy::kDefer;
  if (mode == SimMode::kAgreed) spec.reduce_scatter = LatePolicy::kDefer;
}

// One rank alone makes a call of the last collective, which waits for all.
bool IsLone(const Scenario& scenario, std::size_t collective) {
  return scenario.sim_mismatch() == SimMismatch::kLoneCall &&
         collective + 1 == scenario.collectives;
}

SimStages DrawStages(const Scenario& scenario, std::size_t index) {
  if (scenario.sim_stages() != SimStages::kMixed) return scenario.sim_stages();
  return static_cast<SimStages>(Hash(scenario.seed, Draw::kOneStage, index) % 3);
}

// Leaves a collective the given stages. Shards get one size.
void SetStages(SimStages stages, CollectiveSpec& spec) {
  if (stages == SimStages::kBoth) return;
  if (stages == SimStages::kReduceScatter) {
    spec.all_gather = LatePolicy::kNoStage;
  } else {
    spec.reduce_scatter = LatePolicy::kNoStage;
    if (spec.all_gather != LatePolicy::kDrop) spec.all_gather = LatePolicy::kWait;
    spec.reduce_scatter_deadline = {};
  }
  if (spec.all_gather != LatePolicy::kDrop) spec.all_gather_deadline = {};
  const std::uint64_t members = spec.members.size();
  spec.elements = std::max<std::uint64_t>(spec.elements / members, 1) * members;
}

ElementType DrawElementType(const Scenario& scenario, SimMode mode, Prng& prng) {
  const bool mixed = scenario.element_type == static_cast<std::uint64_t>(SimElementType::kMixed);
  const auto type =
      static_cast<ElementType>(mixed ? prng.Below(scenario.element_type) : scenario.element_type);
  // Integers cannot be rescaled, so lossy sums of them do not exist.
  return mode == SimMode::kLossy && type == ElementType::kInt32 ? ElementType::kFloat32 : type;
}

SimCollective MakeCollective(const Scenario& scenario, std::size_t index) {
  Prng prng(Hash(scenario.seed, Draw::kShape, index));
  SimCollective made;
  CollectiveSpec& spec = made.spec;
  spec.name = "collective " + std::to_string(index);
  const bool whole = index == 0 || scenario.groups > 1;
  spec.elements = whole ? scenario.elements : 1 + prng.Below(scenario.elements);
  const SimMode drawn = DrawMode(scenario.sim_mode(), prng);
  const SimMode mode = IsLone(scenario, index) ? SimMode::kExact : drawn;
  spec.element_type = DrawElementType(scenario, mode, prng);
  SetPolicies(mode, spec);
  if (mode != SimMode::kExact) {
    spec.reduce_scatter_deadline = std::chrono::microseconds(scenario.reduce_scatter_deadline_us);
    spec.all_gather_deadline = std::chrono::microseconds(scenario.all_gather_deadline_us);
  }
  if (spec.element_type == ElementType::kFloat32) {
    const bool any = scenario.wire_format == static_cast<std::uint64_t>(SimWireFormat::kMixed);
    spec.wire_format = static_cast<WireFormat>(any ? index % kWireFormats : scenario.wire_format);
  }
  spec.members = SomeRanks(scenario.ranks, scenario.subsets != 0 && index > 0, prng.Next());
  SetStages(DrawStages(scenario, index), spec);
  spec.description = Describe(spec);
  const auto type = static_cast<std::uint64_t>(spec.element_type);
  spec.fingerprint = Mix(spec.elements * kElementTypes + type);
  made.leaf_elements = CutLeaves(spec.elements, scenario.leaves, prng);
  return made;
}

// The ranks of one collective of several groups: every `step`-th from the first on.
struct Line {
  std::uint64_t first;
  std::uint64_t step;
  std::uint64_t members;
};

SimCollective MakeInGroups(const Scenario& scenario, std::size_t index, Line line, SimStages stages,
                           std::uint64_t elements) {
  SimCollective made = MakeCollective(scenario, index);
  CollectiveSpec& spec = made.spec;
  spec.members.clear();
  for (std::uint64_t m = 0; m < line.members; ++m) {
    spec.members.push_back(Rank(static_cast<std::uint16_t>(line.first + m * line.step)));
  }
  if (scenario.group_stages == 0) return made;
  spec.elements = elements;
  SetStages(stages, spec);
  spec.description = Describe(spec);
  made.leaf_elements = {spec.elements};
  return made;
}

// Calls within each group, and one across the groups for each position in a group.
std::vector<SimCollective> MakeGroups(const Scenario& scenario) {
  const std::uint64_t of_group = scenario.ranks / scenario.groups;
  std::vector<SimCollective> made;
  const auto within = [&](SimStages stages) {
    for (std::uint64_t group = 0; group < scenario.groups; ++group) {
      const Line line{.first = group * of_group, .step = 1, .members = of_group};
      made.push_back(MakeInGroups(scenario, made.size(), line, stages, scenario.elements));
    }
  };
  within(SimStages::kReduceScatter);
  for (std::uint64_t place = 0; place < of_group; ++place) {
    const Line line{.first = place, .step = of_group, .members = scenario.groups};
    made.push_back(
        MakeInGroups(scenario, made.size(), line, SimStages::kBoth, scenario.elements / of_group));
  }
  if (scenario.group_stages != 0) within(SimStages::kAllGather);
  return made;
}

// Leaves a collective its present members. If it has none, all ranks become members.
void EmptyPlaces(const Scenario& scenario, SimCollective& collective) {
  const auto is_absent = [&](Rank rank) { return scenario.IsAbsent(rank); };
  std::vector<Rank>& members = collective.spec.members;
  if (std::ranges::all_of(members, is_absent)) members = SomeRanks(scenario.ranks, false, 0);
  std::ranges::copy_if(members, std::back_inserter(collective.absent), is_absent);
  std::erase_if(members, is_absent);
}

}  // namespace

double LoadElement(ElementType type, const std::byte* from) {
  switch (type) {
    case ElementType::kFloat32:
      return Load<float>(from);
    case ElementType::kBfloat16:
      return Bfloat16ToFloat(Load<std::uint16_t>(from));
    case ElementType::kFloat16:
      return Float16ToDouble(Load<std::uint16_t>(from));
    case ElementType::kFloat64:
      return Load<double>(from);
    case ElementType::kInt32:
      return Load<std::int32_t>(from);
    case ElementType::kComplex64:
    case ElementType::kComplex128:
      break;  // not drawn
  }
  FailCheck("known element type", __FILE__, __LINE__);
}

void StoreElement(ElementType type, double value, std::byte* to) {
  switch (type) {
    case ElementType::kFloat32:
      return Store(static_cast<float>(value), to);
    case ElementType::kBfloat16:
      return Store(FloatToBfloat16(static_cast<float>(value)), to);
    case ElementType::kFloat16:
      return Store(DoubleToFloat16(value), to);
    case ElementType::kFloat64:
      return Store(value, to);
    case ElementType::kInt32:
      return Store(static_cast<std::int32_t>(value), to);
    case ElementType::kComplex64:
    case ElementType::kComplex128:
      break;  // not drawn
  }
  FailCheck("known element type", __FILE__, __LINE__);
}

bool SimCollective::HasMember(Rank rank) const {
  return std::ranges::find(spec.members, rank) != spec.members.end();
}

std::size_t SimCollective::MemberOf(Rank rank) const {
  const auto member = std::ranges::find(spec.members, rank);
  OR_CHECK(member != spec.members.end());
  return static_cast<std::size_t>(member - spec.members.begin());
}

ElementRange SimCollective::ShardOf(std::size_t member) const {
  const std::uint64_t each = spec.elements / spec.members.size();
  return {.first = member * each, .end = (member + 1) * each};
}

CollectiveSpec SimCollective::NamedSpec() const {
  CollectiveSpec named = spec;
  named.members.insert(named.members.end(), absent.begin(), absent.end());
  std::ranges::sort(named.members);
  return named;
}

ElementRange SimCollective::ResultOf(std::size_t member) const {
  return HasAllGather(spec) ? ElementRange{.first = 0, .end = spec.elements} : ShardOf(member);
}

Workload::Workload(const Scenario& scenario) : scenario_(scenario) {
  if (scenario.groups > 1) {
    collectives_ = MakeGroups(scenario);
  } else {
    for (std::size_t i = 0; i < scenario.collectives; ++i) {
      collectives_.push_back(MakeCollective(scenario, i));
    }
  }
  if (scenario.rare > 0 && scenario.groups == 1) collectives_.back().period = scenario.rare;
  for (SimCollective& each : collectives_) {
    EmptyPlaces(scenario, each);
    each.calls = (scenario.calls + each.period - 1) / each.period;
  }
}

SimCollective Workload::CollectiveAt(std::size_t collective, Rank rank) const {
  SimCollective seen = collectives_[collective];
  const bool differs =
      rank.value() == scenario_.mismatch_rank && collective + 1 == collectives_.size();
  if (!differs) return seen;
  CollectiveSpec& spec = seen.spec;
  const std::uint64_t more = HasBothStages(spec) ? 1 : spec.members.size();
  switch (scenario_.sim_mismatch()) {
    case SimMismatch::kFingerprint:
      spec.elements += more;
      seen.leaf_elements.back() += more;
      spec.fingerprint = Mix(spec.fingerprint);
      break;
    case SimMismatch::kName:
      spec.name = "misnamed";
      break;
    case SimMismatch::kElements:
      // Two fingerprints that are equal by accident: collectives that still differ must not be
      // added.
      spec.elements += more;
      seen.leaf_elements.back() += more;
      break;
    case SimMismatch::kOneStage:
      // The bucket is equal, but this rank only scatters it, or does not scatter alone.
      spec.all_gather = HasAllGather(spec) ? LatePolicy::kNoStage : LatePolicy::kWait;
      spec.reduce_scatter = LatePolicy::kWait;
      break;
    case SimMismatch::kNone:
    case SimMismatch::kExtraCall:
    case SimMismatch::kLoneCall:
      return seen;
  }
  spec.description = Describe(spec);
  return seen;
}

Sequence Workload::SequenceOf(SimCall call) const {
  return Sequence(
      static_cast<std::uint32_t>(scenario_.sequence_first + call.index * scenario_.sequence_step));
}

bool Workload::Makes(Rank rank, SimCall call) const {
  const SimCollective& collective = collectives_[call.collective];
  return collective.HasMember(rank) && call.index < CallsOf(call.collective) &&
         !Skips(collective, call, collective.MemberOf(rank));
}

std::vector<SimCall> Workload::SequentialProgramOf(Rank rank) const {
  std::vector<SimCall> calls;
  for (std::size_t step = 0; step <= scenario_.calls; ++step) {
    for (std::size_t c = 0; c < collectives_.size(); ++c) {
      const SimCollective& of = collectives_[c];
      const bool drains = step == scenario_.calls;
      if (!drains && step % of.period != 0) continue;
      const SimCall call{.collective = c, .index = drains ? of.calls : step / of.period};
      if (Makes(rank, call) && !IsLone(scenario_, c)) calls.push_back(call);
    }
  }
  const std::size_t last = collectives_.size() - 1;
  if (IsLone(scenario_, last) && rank.value() == scenario_.mismatch_rank) {
    calls.insert(calls.begin() + 1, SimCall{.collective = last, .index = 0});
  }
  // One more call of the first collective, while the others continue with the second.
  const bool extra = scenario_.sim_mismatch() == SimMismatch::kExtraCall &&
                     rank.value() == scenario_.mismatch_rank;
  if (extra && !calls.empty() && calls.front() == SimCall{}) {
    calls.insert(calls.begin() + 1, SimCall{.collective = 0, .index = 1});
  }
  return calls;
}

std::vector<std::vector<SimCall>> Workload::EndAtOnce(std::vector<SimCall> sequential) const {
  std::vector<std::vector<SimCall>> chains(1 + collectives_.size());
  for (const SimCall call : sequential) {
    const SimCollective& of = collectives_[call.collective];
    const bool beside_drains = call.collective + scenario_.at_once > collectives_.size();
    const bool last = call.index + 1 == of.calls && beside_drains;
    const bool at_end = last || IsDrain(of, call);
    chains[at_end ? 1 + call.collective : 0].push_back(call);
  }
  std::erase_if(chains, [](const std::vector<SimCall>& chain) { return chain.empty(); });
  return chains;
}

std::vector<std::vector<SimCall>> Workload::ProgramOf(Rank rank) const {
  if (scenario_.at_once > 0) return EndAtOnce(SequentialProgramOf(rank));
  if (scenario_.sequential != 0) return {SequentialProgramOf(rank)};
  std::vector<std::vector<SimCall>> chains;
  for (std::size_t c = 0; c < collectives_.size(); ++c) {
    if (!collectives_[c].HasMember(rank)) continue;
    std::vector<SimCall>& chain = chains.emplace_back();
    for (std::size_t index = 0; index < CallsOf(c); ++index) {
      const SimCall call{.collective = c, .index = index};
      if (Makes(rank, call)) chain.push_back(call);
    }
  }
  if (scenario_.shuffled != 0) {
    Prng prng(Hash(scenario_.seed, Draw::kOrder, rank.value()));
    for (std::size_t i = chains.size(); i > 1; --i) std::swap(chains[i - 1], chains[prng.Below(i)]);
  }
  return chains;
}

bool Workload::Skips(const SimCollective& collective, SimCall call, std::size_t member) const {
  const bool may_skip = RetainsLateData(collective.spec) && EndsByDeadline(collective.spec);
  if (scenario_.skip_ppm == 0 || !may_skip || IsDrain(collective, call)) return false;
  // A rank that has not called the collective yet, and is elsewhere for long, would count as
  // disagreeing.
  if (call.index == 0 && scenario_.sequential != 0) return false;
  const std::uint64_t hash =
      Hash(scenario_.seed, Draw::kSkip, collective.spec.fingerprint, call.index, member);
  return hash % 1'000'000 < scenario_.skip_ppm;
}

double Workload::Pattern(SimCall call, std::uint64_t element) const {
  // Chosen: 4 bits and a sign, so that with 16 members a float32 still holds every sum exactly.
  const std::uint64_t hash =
      Hash(scenario_.seed, Draw::kPattern, call.collective, call.index, element);
  const auto magnitude = static_cast<double>(1 + (hash >> 1) % 15);
  return (hash & 1) != 0 ? -magnitude : magnitude;
}

double Workload::WeightOf(ElementType type) {
  // Chosen: with 16 members the largest sum of float16 stays below 65504 after rescaling.
  return type == ElementType::kFloat16 ? 1.0 / 256 : 1.0;
}

Workload::Window Workload::WindowOf(const SimCollective& collective, std::uint64_t element) const {
  const std::size_t digits = DigitsOf(collective.spec.element_type);
  const std::size_t all = collective.spec.members.size() * scenario_.calls;
  const std::size_t windows = (all + digits - 1) / digits;
  const std::size_t first = (scenario_.seed + element) % windows * digits;
  return {.first = first, .count = std::min(digits, all - first)};
}

double Workload::SignOf(std::uint64_t element) const {
  return (Hash(scenario_.seed, Draw::kValue, element) & 1) != 0 ? -1 : 1;
}

std::vector<Workload::Decoded> Workload::DecodeTotal(const SimCollective& collective,
                                                     std::uint64_t element, double total) const {
  const Window window = WindowOf(collective, element);
  const double digits = total * SignOf(element);
  std::vector<Decoded> decoded;
  if (!(digits >= 0) || digits != std::floor(digits) ||
      digits >= std::ldexp(1.0, 2 * static_cast<int>(window.count))) {
    return decoded;
  }
  for (std::size_t place = 0; place < window.count; ++place) {
    const std::size_t at = window.first + place;
    Decoded& each = decoded.emplace_back(
        Decoded{.member = at / scenario_.calls,
                .index = at % scenario_.calls,
                .times = static_cast<int>(static_cast<std::uint64_t>(digits) >> 2 * place & 3)});
    if (each.index >= collective.calls ||
        Skips(collective, {.collective = 0, .index = each.index}, each.member)) {
      ++each.times;
    } else {
      each.value = std::ldexp(SignOf(element), 2 * static_cast<int>(place));
    }
  }
  return decoded;
}

double Workload::Magnitude(const SimCollective& collective) const {
  const std::size_t digits = DigitsOf(collective.spec.element_type);
  double magnitude = 0;
  for (std::size_t at = 0; at < collective.spec.members.size() * scenario_.calls; ++at) {
    magnitude += std::ldexp(1.0, 2 * static_cast<int>(at % digits));
  }
  return magnitude;
}

bool Workload::HoldsAllOnce(const SimCollective& collective, std::uint64_t element,
                            double total) const {
  return total == AllOnce(collective, element);
}

double Workload::AllOnce(const SimCollective& collective, std::uint64_t element) const {
  const Window window = WindowOf(collective, element);
  double once = 0;
  for (std::size_t at = window.first; at < window.first + window.count; ++at) {
    const SimCall call{.collective = 0, .index = at % scenario_.calls};
    if (call.index >= collective.calls) continue;
    if (Skips(collective, call, at / scenario_.calls)) continue;
    once += std::ldexp(1.0, 2 * static_cast<int>(at - window.first));
  }
  return SignOf(element) * once;
}

double Workload::Contribution(const SimCollective& collective, SimCall call, std::size_t member,
                              std::uint64_t element) const {
  const ElementType type = collective.spec.element_type;
  if (collective.lossy()) {
    return std::ldexp(WeightOf(type) * Pattern(call, element), static_cast<int>(member));
  }
  if (IsDrain(collective, call) || Skips(collective, call, member)) return 0;
  const Window window = WindowOf(collective, element);
  const std::size_t place = member * scenario_.calls + call.index - window.first;
  if (place >= window.count) return 0;
  return std::ldexp(SignOf(element), 2 * static_cast<int>(place));
}

template <typename Visit>
void Workload::ForEachElement(const SimCollective& collective, SimCall call, std::size_t member,
                              ElementRange elements, Visit visit) const {
  if (collective.lossy() || collective.defers()) {
    for (std::uint64_t i = elements.first; i < elements.end; ++i) {
      visit(i, Contribution(collective, call, member, i));
    }
    return;
  }
  const ElementType type = collective.spec.element_type;
  const bool floats = scenario_.fill == static_cast<std::uint64_t>(SimFill::kFloats);
  // The part common to all elements is hashed once.
  const std::uint64_t common =
      HashOf(scenario_.seed, Draw::kValue, call.collective * 4096 + call.index, member);
  for (std::uint64_t i = elements.first; i < elements.end; ++i) {
    const std::uint64_t hash = With(common, i);
    if (type == ElementType::kInt32) {
      visit(i, static_cast<double>(static_cast<std::int32_t>(hash >> 32)));
    } else {
      visit(i, floats ? RandomFloat(type, hash) : static_cast<double>(hash % 16) - 8);
    }
  }
}

void Workload::Fill(const SimCollective& collective, SimCall call, std::size_t member,
                    std::span<std::byte> bucket) const {
  const ElementType type = collective.spec.element_type;
  ForEachElement(
      collective, call, member, {.first = 0, .end = collective.spec.elements},
      [&](std::uint64_t i, double value) { StoreElement(type, value, &bucket[i * SizeOf(type)]); });
}

Quorum Workload::QuorumOf(const SimCollective& collective) const {
  const CollectiveSpec& spec = collective.spec;
  const bool even = spec.elements / spec.members.size() % 2 == 0;
  if (HasReduceScatter(spec) || !collective.lossy() || even) return {};
  // Clusters of two or three, one of which is spare.
  const std::size_t clusters = std::max<std::size_t>(spec.members.size() / 2, 1);
  Quorum quorum{.clusters = {}, .spare = 1};
  for (std::size_t member = 0; member < spec.members.size(); ++member) {
    quorum.clusters.push_back(static_cast<std::uint16_t>(member % clusters));
  }
  return quorum;
}

std::vector<std::byte> Workload::Reference(const SimCollective& collective, SimCall call) const {
  // Chosen: the sums of this many elements stay in a first-level cache.
  constexpr std::uint64_t kTogether = 1024;
  const ElementType type = collective.spec.element_type;
  std::vector<std::byte> sums(collective.bytes());
  if (!HasReduceScatter(collective.spec)) {
    for (std::size_t member = 0; member < collective.spec.members.size(); ++member) {
      ForEachElement(collective, call, member, collective.ShardOf(member),
                     [&](std::uint64_t i, double value) {
                       StoreElement(type, value, &sums[i * SizeOf(type)]);
                     });
    }
    return sums;
  }
  for (std::uint64_t first = 0; first < collective.spec.elements; first += kTogether) {
    const std::uint64_t end = std::min(first + kTogether, collective.spec.elements);
    // The specified arithmetic: float32 for 32 bits and fewer, in rank order, rounded once.
    std::array<float, kTogether> sum_float;
    std::array<double, kTogether> sum_double;
    for (std::size_t member = 0; member < collective.spec.members.size(); ++member) {
      ForEachElement(collective, call, member, {.first = first, .end = end},
                     [&](std::uint64_t i, double value) {
                       const std::size_t at = i - first;
                       // The first contribution is assigned: adding -0 to 0 would lose its sign.
                       const bool adds = member > 0;
                       const auto rounded = static_cast<float>(value);
                       sum_float[at] = adds ? sum_float[at] + rounded : rounded;
                       sum_double[at] = adds ? sum_double[at] + value : value;
                     });
    }
    for (std::uint64_t i = first; i < end; ++i) {
      double sum = sum_float[i - first];
      if (type == ElementType::kFloat64) sum = sum_double[i - first];
      // Exact, with wrap-around.
      if (type == ElementType::kInt32) {
        sum = static_cast<std::int32_t>(static_cast<std::int64_t>(sum_double[i - first]));
      }
      StoreElement(type, sum, &sums[i * SizeOf(type)]);
    }
  }
  return sums;
}

}  // namespace optireduce
