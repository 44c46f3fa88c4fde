// Delivers the requested number of forged datagrams to endpoints with open calls. Exits with 1 if
// one of them had an effect.
//
//   optireduce_forge --count 10000000 --seed 1 [--encrypt]

#include <sys/resource.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
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

struct Arguments {
  std::uint64_t count = 1'000'000;
  std::uint64_t seed = 1;
  Protection protection = Protection::kAuthenticate;
};

bool ReadNumber(std::string_view text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// False if an argument is unknown or unreadable.
bool Read(std::span<char* const> given, Arguments& arguments) {
  for (; !given.empty(); given = given.subspan(1)) {
    const std::string_view key = given.front();
    if (key == "--encrypt") {
      arguments.protection = Protection::kEncrypt;
      continue;
    }
    if ((key != "--count" && key != "--seed") || given.size() < 2) return false;
    given = given.subspan(1);
    if (!ReadNumber(given.front(), key == "--count" ? arguments.count : arguments.seed)) {
      return false;
    }
  }
  return true;
}

int Main(std::span<char* const> given) {
  Arguments arguments;
  if (!Read(given, arguments)) {
    std::fprintf(stderr, "optireduce_forge [--count N] [--seed N] [--encrypt]\n");
    return 2;
  }
  const auto [count, seed, protection] = arguments;
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

int main(int count, char** arguments) {
  return optireduce::Main(std::span(arguments, static_cast<std::size_t>(count)).subspan(1));
}
