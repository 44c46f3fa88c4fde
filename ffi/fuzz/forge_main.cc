// Delivers the requested number of forged datagrams to endpoints with open calls. Exits with 1 if
// one of them had an effect.
//
//   optireduce_forge --count 10000000 --seed 1 [--encrypt]

#include <sys/resource.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "ffi/fuzz/forge.h"

namespace optireduce {
namespace {

// Chosen: by then every buffer has been in use once; the process should not grow any further.
constexpr std::uint64_t kFirstPart = 100'000;

long PeakKilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

void Print(const ForgeReport& report) {
  const auto print = [](const char* name, std::uint64_t value) {
    std::printf("  %-26s %12llu\n", name, static_cast<unsigned long long>(value));
  };
  std::printf("made:\n");
#define OPTIREDUCE_PRINT(name, meaning) print(#name, report.name);
  OPTIREDUCE_FORGERIES(OPTIREDUCE_PRINT)
#undef OPTIREDUCE_PRINT
  print("forged, all", report.forged);
  std::printf("effects, which must be 0:\n");
  print("accepted", report.accepted);
  print("answered", report.answered);
  print("state changes", report.state_changes);
  print("calls failed", report.calls_failed);
  print("wrong sums", report.wrong_sums);
  print("memory bytes left", report.memory_bytes_left);
  std::printf("meanwhile:\n");
  print("genuine datagrams", report.genuine);
  print("calls completed", report.calls_completed);
  std::printf("counters of the endpoints:\n");
#define OPTIREDUCE_PRINT_COUNTER(name, meaning) \
  if (report.refused.name > 0) print(#name, report.refused.name);
  OPTIREDUCE_COUNTERS(OPTIREDUCE_PRINT_COUNTER)
#undef OPTIREDUCE_PRINT_COUNTER
}

int Main(int argument_count, char** arguments) {
  std::uint64_t count = 1'000'000;
  std::uint64_t seed = 1;
  Protection protection = Protection::kAuthenticate;
  for (int i = 1; i < argument_count; ++i) {
    const std::string_view key = arguments[i];
    if (key == "--encrypt") {
      protection = Protection::kEncrypt;
      continue;
    }
    std::uint64_t* const number = key == "--count" ? &count : key == "--seed" ? &seed : nullptr;
    const std::string_view value = i + 1 < argument_count ? arguments[++i] : "";
    const auto [end, error] =
        number == nullptr ? std::from_chars_result{nullptr, std::errc::invalid_argument}
                          : std::from_chars(value.data(), value.data() + value.size(), *number);
    if (error != std::errc() || end != value.data() + value.size()) {
      std::fprintf(stderr, "optireduce_forge [--count N] [--seed N] [--encrypt]\n");
      return 2;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  const bool first_passed = Forge(kFirstPart, seed + 1, protection).passed();
  const long before = PeakKilobytes();
  const ForgeReport report = Forge(count, seed, protection);
  const long after = PeakKilobytes();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("seed %llu, %.1f s\n", static_cast<unsigned long long>(seed), elapsed.count());
  Print(report);
  std::printf("peak memory of the process: %ld KiB after %llu datagrams, %ld KiB at the end\n",
              before, static_cast<unsigned long long>(kFirstPart), after);
  return report.passed() && first_passed ? 0 : 1;
}

}  // namespace
}  // namespace optireduce

int main(int count, char** arguments) { return optireduce::Main(count, arguments); }
