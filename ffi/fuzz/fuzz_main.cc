// Drives a fuzz target if the compiler has no libFuzzer, with the same arguments:
//
//   optireduce_fuzz_wire -max_total_time=30 -seed=7      mutates for 30 seconds
//   optireduce_fuzz_wire -runs=1000 -max_len=400         for so many inputs of so many bytes
//   optireduce_fuzz_wire -runs=1000 tests/fuzz/wire      starts from the inputs of a folder
//   optireduce_fuzz_wire fuzz-failure                    runs one input again
//
// An input with a new effect in the target (see reach.h) joins the corpus. The input of a crash, a
// failed check, or a run of more than ten seconds is written to `fuzz-failure`.

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/base/prng.h"
#include "ffi/fuzz/mutate.h"
#include "ffi/fuzz/reach.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Provided by the runtime of the sanitizers, if there is one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace optireduce {
namespace {

constexpr const char* kFailure = "fuzz-failure";
constexpr unsigned kSecondsPerRunMax = 10;
// Chosen: most inputs derive from one with a new effect, the others from nothing.
constexpr std::uint32_t kAnewPartsPerMillion = 20'000;
// Chosen: with few changes most of the parent's effects remain.
constexpr std::uint64_t kChangesMax = 6;

Bytes input;  // the current run's input, read by the handlers below

void WriteFailure() {
  std::FILE* const file = std::fopen(kFailure, "wb");
  if (file == nullptr) return;
  std::fwrite(input.data(), 1, input.size(), file);
  std::fclose(file);
  std::fprintf(stderr, "the input was written to %s (%zu bytes)\n", kFailure, input.size());
}

void HandleSignal(int number) {
  std::fprintf(stderr, number == SIGALRM ? "a run took more than %u s\n" : "signal in a run\n",
               kSecondsPerRunMax);
  WriteFailure();
  _exit(1);
}

void InstallHandlers() {
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(&WriteFailure);
  for (const int number : {SIGABRT, SIGALRM}) signal(number, &HandleSignal);
}

void Run() {
  alarm(kSecondsPerRunMax);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  alarm(0);
}

struct Limits {
  std::uint64_t max_total_time = 0;  // seconds; 0: none
  std::uint64_t runs = 0;            // 0: none
  std::uint64_t seed = 1;
  std::uint64_t max_len = 1500;  // bytes
};

// True if `argument` is "-name=number" with this name.
bool Read(std::string_view argument, std::string_view name, std::uint64_t& number) {
  if (!argument.starts_with(name)) return false;
  argument.remove_prefix(name.size());
  const auto [end, error] =
      std::from_chars(argument.data(), argument.data() + argument.size(), number);
  return error == std::errc() && end == argument.data() + argument.size();
}

std::optional<Bytes> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> read{std::istreambuf_iterator<char>(file), {}};
  if (!file && read.empty()) return std::nullopt;
  const auto* bytes = reinterpret_cast<const std::byte*>(read.data());
  return Bytes(bytes, bytes + read.size());
}

// Reads the files in the order of their names: a seed gives the same run everywhere.
std::vector<Bytes> ReadFolder(const std::string& path) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) names.insert(entry.path());
  std::vector<Bytes> inputs;
  for (const std::string& name : names) inputs.push_back(ReadFile(name).value_or(Bytes()));
  return inputs;
}

bool RunFile(const std::string& path) {
  std::optional<Bytes> read = ReadFile(path);
  if (!read) return false;
  input = std::move(*read);
  Run();
  std::printf("%s: passed\n", path.c_str());
  return true;
}

void Fuzz(const Limits& limits, std::vector<Bytes> corpus) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(limits.seed));
  std::fflush(stdout);
  Prng prng(limits.seed);
  const std::size_t given = corpus.size();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(limits.max_total_time);
  std::uint64_t runs = 0;
  while ((limits.runs == 0 || runs < limits.runs) &&
         (limits.max_total_time == 0 || std::chrono::steady_clock::now() < end)) {
    if (prng.Chance(kAnewPartsPerMillion)) {
      input.resize(prng.Below(limits.max_len + 1));
      for (std::byte& byte : input) byte = static_cast<std::byte>(prng.Below(256));
    } else {
      input = corpus[prng.Below(corpus.size())];
      for (std::uint64_t i = 0; i <= prng.Below(kChangesMax); ++i) {
        MutateOnce(prng, input, limits.max_len);
      }
    }
    Run();
    ++runs;
    if (TakeNews()) corpus.push_back(input);
  }
  std::printf("%llu runs passed, %zu inputs did something new\n",
              static_cast<unsigned long long>(runs), corpus.size() - given);
}

bool ReadLimit(std::string_view argument, Limits& limits) {
  return Read(argument, "-max_total_time=", limits.max_total_time) ||
         Read(argument, "-runs=", limits.runs) || Read(argument, "-seed=", limits.seed) ||
         Read(argument, "-max_len=", limits.max_len);
}

int Main(const std::vector<std::string>& arguments) {
  Limits limits;
  bool files = false;
  std::vector<Bytes> corpus(1);
  InstallHandlers();
  for (const std::string& argument : arguments) {
    if (ReadLimit(argument, limits)) continue;
    if (std::filesystem::is_directory(argument)) {
      for (Bytes& read : ReadFolder(argument)) corpus.push_back(std::move(read));
      continue;
    }
    files = true;
    if (argument.starts_with('-') || !RunFile(argument)) {
      std::fprintf(stderr, "cannot read: %s\n", argument.c_str());
      return 2;
    }
  }
  if (files) return 0;
  if (limits.max_total_time == 0 && limits.runs == 0) {
    std::fprintf(stderr, "give -max_total_time=SECONDS, -runs=COUNT, or files to run again\n");
    return 2;
  }
  Fuzz(limits, std::move(corpus));
  return 0;
}

}  // namespace
}  // namespace optireduce

int main(int count, char** arguments) {
  return optireduce::Main(std::vector<std::string>(arguments + 1, arguments + count));
}
