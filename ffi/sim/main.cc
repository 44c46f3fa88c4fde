// The simulator as a program: runs thousands of seeds, or replays one scenario.
//
//   optireduce_simulate --seed 1 --count 2000 --size small
//   optireduce_simulate --scenario "seed=7 ranks=4 loss_ppm=30000"
//   optireduce_simulate --file tests/simulation/regressions.txt

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/sim/scenario.h"
#include "ffi/sim/simulate.h"

namespace optireduce {
namespace {

// Chosen: often enough to detect a dependence on an address or on the order of a hash table.
constexpr std::uint64_t kRepeatOneIn = 50;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Arguments {
  std::uint64_t seed = 0;
  std::uint64_t count = 100;
  ScenarioSize size = ScenarioSize::kSmall;
  std::string scenario;
  std::string file;
  bool counters = false;
  bool keep_going = false;
  bool trace = false;
  bool help = false;
  std::string error;
};

bool ReadNumber(std::string_view text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool ReadSize(std::string_view text, ScenarioSize& size) {
  size = text == "small" ? ScenarioSize::kSmall : ScenarioSize::kMedium;
  return text == "small" || text == "medium";
}

Arguments ReadArguments(const std::vector<std::string>& given) {
  Arguments arguments;
  const std::map<std::string, bool*> flags = {{"--help", &arguments.help},
                                              {"--counters", &arguments.counters},
                                              {"--trace", &arguments.trace},
                                              {"--keep-going", &arguments.keep_going}};
  const std::map<std::string, std::function<bool(const std::string&)>> readers = {
      {"--seed", [&](const std::string& text) { return ReadNumber(text, arguments.seed); }},
      {"--count", [&](const std::string& text) { return ReadNumber(text, arguments.count); }},
      {"--size", [&](const std::string& text) { return ReadSize(text, arguments.size); }},
      {"--scenario", [&](const std::string& text) { return arguments.scenario = text, true; }},
      {"--file", [&](const std::string& text) { return arguments.file = text, true; }}};
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string& key = given[i];
    if (flags.contains(key)) {
      *flags.at(key) = true;
    } else if (i + 1 == given.size()) {
      arguments.error = key + " is unknown or needs a value";
    } else if (const std::string& value = given[++i];
               !readers.contains(key) || !readers.at(key)(value)) {
      arguments.error = "cannot read: " + key + " " + value;
    }
  }
  return arguments;
}

void PrintUsage() {
  std::cout << "optireduce_simulate: runs the protocol in virtual time.\n\n"
               "  --seed N --count N --size small|medium   scenarios made from seeds\n"
               "  --scenario \"key=value ...\"               one scenario\n"
               "  --file PATH                              one scenario per line, # comments\n"
               "  --counters                               also print every counter\n"
               "  --trace                                  also print every event\n"
               "  --keep-going                             do not stop at the first failure\n\n"
               "Fields of a scenario (default): meaning\n"
            << DescribeScenarioFields();
}

// Sums over runs, and the verdict.
class Tally {
 public:
  // False if the run failed; prints the line that replays it.
  bool Run(const Scenario& scenario, std::ostream* trace) {
    const SimulationReport report = Simulate(scenario, trace);
    ++runs_;
    Add(report);
    std::string failure = report.failure;
    if (failure.empty() && runs_ % kRepeatOneIn == 0 && Simulate(scenario).hash != report.hash) {
      failure = "a second run of the same scenario had another trace";
    }
    if (failure.empty()) return true;
    ++failed_;
    std::cout << "FAILED " << failure << "\n  replay: optireduce_simulate --scenario \""
              << Print(scenario) << "\"\n";
    return false;
  }

  void PrintCounters() const {
    for (const auto& [name, value] : sums_) std::cout << "  " << name << " " << value << "\n";
  }

  void PrintSummary(double elapsed_s) const {
    std::cout << (failed_ == 0 ? "OK " : "FAILED ") << runs_ << " runs, " << failed_ << " failed, "
              << events_ << " events, " << static_cast<std::uint64_t>(virtual_s_)
              << " s of virtual time, " << liveness_worst_s_ << " s longest recovery, "
              << memory_peak_bytes_ << " bytes at most held by a rank, hash " << std::hex << hash_
              << std::dec << ", " << elapsed_s << " s\n";
  }

  bool ok() const { return failed_ == 0; }

 private:
  void Add(const SimulationReport& report) {
#define OPTIREDUCE_SUM_COUNTER(name, meaning) sums_["endpoint." #name] += report.counters.name;
    OPTIREDUCE_COUNTERS(OPTIREDUCE_SUM_COUNTER)
#undef OPTIREDUCE_SUM_COUNTER
#define OPTIREDUCE_SUM_FAULT(name, meaning) sums_["fault." #name] += report.faults.name;
    OPTIREDUCE_FAULTS(OPTIREDUCE_SUM_FAULT)
#undef OPTIREDUCE_SUM_FAULT
    events_ += report.events;
    memory_peak_bytes_ = std::max(memory_peak_bytes_, report.memory_peak_bytes);
    hash_ = hash_ * 31 + report.hash;
    virtual_s_ += std::chrono::duration<double>(report.virtual_time).count();
    liveness_worst_s_ =
        std::max(liveness_worst_s_, std::chrono::duration<double>(report.liveness_worst).count());
  }

  std::uint64_t runs_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t hash_ = 0;
  double virtual_s_ = 0;
  double liveness_worst_s_ = 0;
  std::size_t memory_peak_bytes_ = 0;
  std::map<std::string, std::uint64_t> sums_;
};

// The listed scenarios; prints an error and returns false if there is one.
bool Collect(const Arguments& arguments, std::vector<Scenario>& scenarios) {
  std::vector<std::string> lines;
  if (!arguments.scenario.empty()) lines.push_back(arguments.scenario);
  if (!arguments.file.empty()) {
    std::ifstream file(arguments.file);
    if (!file) {
      std::cerr << "cannot open " << arguments.file << "\n";
      return false;
    }
    for (std::string line; std::getline(file, line);) {
      line = line.substr(0, line.find('#'));
      if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
    }
  }
  for (const std::string& line : lines) {
    Result<Scenario> parsed = ParseScenario(line);
    if (!parsed.ok()) {
      std::cerr << parsed.status().message() << "\n";
      return false;
    }
    scenarios.push_back(parsed.value());
  }
  return true;
}

// Runs the listed scenarios, or those of the seeds.
void RunAll(const Arguments& arguments, const std::vector<Scenario>& scenarios, Tally& tally) {
  const bool listed = !arguments.scenario.empty() || !arguments.file.empty();
  const std::uint64_t count = listed ? scenarios.size() : arguments.count;
  for (std::uint64_t i = 0; i < count; ++i) {
    const Scenario scenario =
        listed ? scenarios[i] : MakeScenario(arguments.seed + i, arguments.size);
    const bool held = tally.Run(scenario, arguments.trace ? &std::cout : nullptr);
    if (!held && !arguments.keep_going) break;
  }
}

int Main(const std::vector<std::string>& given) {
  const Arguments arguments = ReadArguments(given);
  if (arguments.help) {
    PrintUsage();
    return 0;
  }
  std::vector<Scenario> scenarios;
  if (!arguments.error.empty() || !Collect(arguments, scenarios)) {
    std::cerr << arguments.error << "\n`--help` lists the options.\n";
    return kExitUsage;
  }
  const auto start = std::chrono::steady_clock::now();
  Tally tally;
  RunAll(arguments, scenarios, tally);
  if (arguments.counters) tally.PrintCounters();
  tally.PrintSummary(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return tally.ok() ? 0 : kExitFailed;
}

}  // namespace
}  // namespace optireduce

int main(int argc, char** argv) {
  return optireduce::Main(std::vector<std::string>(argv + 1, argv + argc));
}
