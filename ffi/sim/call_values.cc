#include "ffi/sim/call_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace optireduce {
namespace {

// Chosen: sums of at most 2^24 bytes and counts, in doubles.
constexpr double kFractionTolerance = 1e-9;

// True for types whose sums identify every subset.
bool IsFine(ElementType type) {
  return type == ElementType::kFloat32 || type == ElementType::kFloat64;
}

// Possible numbers of contributions in a sum; some sums are possible with several numbers.
struct Decoded {
  std::uint64_t mask = 0;  // one possible subset
  std::size_t least = 0;   // 0: no subset gives this value
  std::size_t most = 0;
};

class Decoder {
 public:
  Decoder(std::size_t members, ElementType type)
      : members_(members), tolerance_(RoundingOf(type)) {}

  // `value` in units of the weight and pattern of its element: a rescaled sum of powers of two.
  Decoded Decode(double value) {
    // Neighbours lie in one segment and hold the same contributions.
    if (last_.least > 0 && Near(value, Value(last_.mask, last_.least))) return last_;
    last_ = Search(value);
    return last_;
  }

 private:
  double Value(std::uint64_t mask, std::size_t count) const {
    return static_cast<double>(mask) * static_cast<double>(members_) / static_cast<double>(count);
  }
  bool Near(double a, double b) const { return std::fabs(a - b) <= tolerance_ * std::fabs(b); }

  Decoded Search(double value) const {
    Decoded decoded;
    for (std::size_t count = 1; count <= members_; ++count) {
      const double sum = value * static_cast<double>(count) / static_cast<double>(members_);
      const double slack = sum * tolerance_ * 2;
      const auto most = static_cast<double>((std::uint64_t{1} << members_) - 1);
      if (!(sum - slack <= most) || sum + slack < 1) continue;
      const auto from = static_cast<std::uint64_t>(std::ceil(std::max(sum - slack, 1.0)));
      const auto to = static_cast<std::uint64_t>(std::floor(std::min(sum + slack, most)));
      for (std::uint64_t mask = from; mask <= to; ++mask) {
        if (static_cast<std::size_t>(std::popcount(mask)) != count) continue;
        if (!Near(value, Value(mask, count))) continue;
        if (decoded.least == 0) decoded = {.mask = mask, .least = count, .most = count};
        decoded.most = count;
        break;
      }
    }
    return decoded;
  }

  std::size_t members_;
  double tolerance_;
  Decoded last_;
};

}  // namespace

double RoundingOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
      return 0x1p-50;
    case ElementType::kBfloat16:
      return 0x1p-8;
    case ElementType::kFloat16:
      return 0x1p-10;
    default:
      return 0x1p-22;
  }
}

std::string CheckExactResult(const SimCollective& collective, ElementRange elements,
                             std::span<const std::byte> result,
                             std::span<const std::byte> reference, const CallStats& stats) {
  if (result.size() != reference.size()) {
    return "has " + std::to_string(result.size()) + " bytes instead of " +
           std::to_string(reference.size());
  }
  const ElementType type = collective.spec.element_type;
  for (std::size_t element = elements.first; element < elements.end; ++element) {
    const std::size_t offset = element * SizeOf(type);
    if (std::memcmp(&result[offset], &reference[offset], SizeOf(type)) == 0) continue;
    return "element " + std::to_string(element) + " is " +
           std::to_string(LoadElement(type, &result[offset])) + " instead of " +
           std::to_string(LoadElement(type, &reference[offset]));
  }
  if (!IsWhole(stats)) {
    return "is whole, but its stats report missing_contributions=" +
           std::to_string(stats.missing_contributions) +
           " missing_results=" + std::to_string(stats.missing_results);
  }
  return {};
}

double RoundingErrorMax(const Workload& workload, const SimCollective& collective, SimCall call) {
  double largest = 0;
  std::vector<std::byte> given(collective.bytes());
  for (std::size_t member = 0; member < collective.spec.members.size(); ++member) {
    workload.Fill(collective, call, member, given);
    double of_member = 0;
    for (std::size_t i = 0; i < collective.spec.elements; ++i) {
      const double value = LoadElement(ElementType::kFloat32, &given[i * sizeof(float)]);
      of_member = std::max(of_member, std::fabs(value));
    }
    largest += of_member;
  }
  return kRoundingSteps * StepMax(collective.spec.wire_format) * largest;
}

std::string CheckRoundedLossyResult(const Workload& workload, const SimCollective& collective,
                                    SimCall call, ElementRange elements,
                                    std::span<const std::byte> result,
                                    std::span<const std::byte> reference, const CallStats& stats) {
  const auto members = static_cast<double>(collective.spec.members.size());
  const double error_max = RoundingErrorMax(workload, collective, call);
  const bool whole = IsWhole(stats);
  std::size_t zeros = 0;
  for (std::size_t i = elements.first; i < elements.end; ++i) {
    const double got = LoadElement(ElementType::kFloat32, &result[i * sizeof(float)]);
    const double sum = LoadElement(ElementType::kFloat32, &reference[i * sizeof(float)]);
    zeros += got == 0;
    // The sum of k contributions times members / k: all contributions have the sign of the whole
    // sum.
    const double least = whole ? sum : std::min(0.0, members * sum);
    const double most = whole ? sum : std::max(0.0, members * sum);
    const double slack = whole ? error_max : members * error_max;
    if (got >= least - slack && got <= most + slack) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(got) +
           ", which rounding does not explain; the sum of all is " + std::to_string(sum);
  }
  const double missing =
      static_cast<double>(zeros) / static_cast<double>(elements.end - elements.first);
  if (stats.missing_results <= missing + kFractionTolerance) return {};
  return "misses " + std::to_string(missing) + " of its elements, but its stats say " +
         std::to_string(stats.missing_results);
}

std::string CheckLossyResult(const Workload& workload, const SimCollective& collective,
                             SimCall call, ElementRange elements, std::span<const std::byte> result,
                             const CallStats& stats) {
  const ElementType type = collective.spec.element_type;
  const std::size_t members = collective.spec.members.size();
  const std::uint64_t count = elements.end - elements.first;
  Decoder decoder(members, type);
  std::uint64_t zeros = 0;
  double least = 0;
  double most = 0;
  for (std::uint64_t i = elements.first; i < elements.end; ++i) {
    const double value = LoadElement(type, &result[i * SizeOf(type)]);
    if (value == 0) {
      ++zeros;
      continue;
    }
    const double unit = Workload::WeightOf(type) * workload.Pattern(call, i);
    const Decoded decoded = decoder.Decode(value / unit);
    if (decoded.least == 0) {
      return "element " + std::to_string(i) + " is " + std::to_string(value) +
             ", which is members/k times the sum of no k contributions (unit " +
             std::to_string(unit) + ")";
    }
    least += static_cast<double>(decoded.least);
    most += static_cast<double>(decoded.most);
  }
  const double missing = static_cast<double>(zeros) / static_cast<double>(count);
  if (std::fabs(missing - stats.missing_results) > kFractionTolerance) {
    return "misses " + std::to_string(missing) + " of its elements, but its stats say " +
           std::to_string(stats.missing_results);
  }
  if (!IsFine(type) || zeros == count) return {};
  const auto all = static_cast<double>((count - zeros) * members);
  if (stats.missing_contributions < 1 - most / all - kFractionTolerance ||
      stats.missing_contributions > 1 - least / all + kFractionTolerance) {
    return "misses " + std::to_string(1 - least / all) +
           " of the contributions, but its stats say " +
           std::to_string(stats.missing_contributions);
  }
  return {};
}

std::string CheckGatheredResult(const SimCollective& collective, std::span<const std::byte> result,
                                std::span<const std::byte> reference, const CallStats& stats) {
  const ElementType type = collective.spec.element_type;
  std::uint64_t zeros = 0;
  for (std::uint64_t i = 0; i < collective.spec.elements; ++i) {
    const double got = LoadElement(type, &result[i * SizeOf(type)]);
    const double wanted = LoadElement(type, &reference[i * SizeOf(type)]);
    zeros += got == 0;
    if (got == 0 || got == wanted) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(got) + ", neither " +
           std::to_string(wanted) + " nor missing";
  }
  const double missing = static_cast<double>(zeros) / static_cast<double>(collective.spec.elements);
  if (std::fabs(missing - stats.missing_results) <= kFractionTolerance) return {};
  return "misses " + std::to_string(missing) + " of its elements, but its stats say " +
         std::to_string(stats.missing_results);
}

}  // namespace optireduce
