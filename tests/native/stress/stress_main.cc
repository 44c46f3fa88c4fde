// The runtime with many ranks in one process, over loopback: a program for the thread sanitizer.
// Each rank has a communicator of its own with two lanes, and a thread for each of its devices.
//
//   optireduce_stress [calls]
//
// Prints "FAILED" with the scene and the failure, or "OK". Results do not depend on the load of the
// machine, except that a call counts as hanging after a minute.

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ffi/runtime/communicator.h"

namespace optireduce {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint16_t kRanks = 4;
constexpr std::uint32_t kDevices = 2;  // devices of each rank
// The last rank leaves, falls silent, or is interrupted.
constexpr std::uint16_t kOther = kRanks - 1;
constexpr std::size_t kDatagramBytes = 1472;
constexpr seconds kHangs{60};
constexpr int kCallsDefault = 20;

struct Mode {
  const char* name;
  LatePolicy reduce_scatter;
  LatePolicy all_gather;
  std::uint64_t elements;
};
// Buckets of the first mode are split across both lanes.
constexpr std::array<Mode, 4> kModes = {{{"exact", LatePolicy::kWait, LatePolicy::kWait, 300'000},
                                         {"agreed", LatePolicy::kDefer, LatePolicy::kWait, 5'000},
                                         {"bounded", LatePolicy::kDefer, LatePolicy::kDefer, 5'000},
                                         {"lossy", LatePolicy::kDrop, LatePolicy::kDrop, 5'000}}};
constexpr std::size_t kExact = 0;
constexpr std::size_t kBounded = 2;

std::string scene;  // written by one thread, while no other runs

// Exits at once, because threads that hang cannot be joined.
[[noreturn]] void Fail(const std::string& what) {
  std::printf("FAILED %s: %s\n", scene.c_str(), what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

void Expect(bool holds, const std::string& what) {
  if (!holds) Fail(what);
}

struct SessionOptions {
  Faults faults;              // faults of all ranks
  bool other_silent = false;  // no datagram of the last rank arrives
  Duration peer_timeout = seconds(30);
  Duration deadline{};  // 0: learned
};

// All ranks of a session, connected, each with a thread that waits for its events.
class Session {
 public:
  explicit Session(const SessionOptions& options) : pool_(std::make_shared<CompletionPool>()) {
    std::vector<RankAddress> addresses;
    for (std::uint16_t rank = 0; rank < kRanks; ++rank) {
      auto created = Communicator::Create(OptionsOf(options, rank), pool_);
      Expect(created.ok(), "no communicator: " + created.status().message());
      ranks_.push_back(created.value());
      addresses.push_back({.address = "127.0.0.1", .ports = ranks_.back()->ports()});
    }
    for (const auto& rank : ranks_) {
      const Status status =
          rank->Connect(addresses, kDatagramBytes, rank->granted_receive_buffer_bytes());
      Expect(status.ok(), "not connected: " + status.message());
      watchers_.emplace_back([&rank] {
        while (rank->WaitForEvent()) {
        }
      });
    }
  }

  ~Session() {
    // All at once, as processes would.
    std::vector<std::thread> closing;
    for (const auto& rank : ranks_) {
      closing.emplace_back([&rank] { rank->Close("the scene is over"); });
    }
    for (std::thread& each : closing) each.join();
    for (std::thread& each : watchers_) each.join();
  }

  Communicator& rank(std::uint16_t r) { return *ranks_[r]; }

  std::uint64_t Counter(std::uint16_t r, std::string_view name) const {
    for (const auto& [each, value] : ranks_[r]->counters()) {
      if (each == name) return value;
    }
    Fail("no counter " + std::string(name));
  }

 private:
  static CommunicatorOptions OptionsOf(const SessionOptions& options, std::uint16_t rank) {
    CommunicatorOptions made;
    made.name = "stress";
    made.rank = Rank(rank);
    made.world_size = kRanks;
    made.secret.fill(std::byte{7});
    made.bind_address = "127.0.0.1";
    made.lanes = 2;
    made.receive_buffer_bytes = std::size_t{1} << 20;
    made.peer_timeout = options.peer_timeout;
    made.mismatch_timeout = seconds(30);
    made.deadline = options.deadline;
    made.late_budget = 0.01;
    made.deadline_max = milliseconds(500);
    made.stall_timeout = milliseconds(50);
    made.faults = options.faults;
    if (options.other_silent && rank == kOther) made.faults->loss_ppm = 1'000'000;
    return made;
  }

  std::shared_ptr<CompletionPool> pool_;
  std::vector<std::shared_ptr<Communicator>> ranks_;
  std::vector<std::thread> watchers_;
};

// A bucket of one device, and its call.
class Bucket {
 public:
  Bucket(const Mode& mode, std::uint32_t device)
      : mode_(mode), device_(device), values_(mode.elements), total_(mode.elements) {}

  // Contributions of all devices to a call, whose sum has no rounding error.
  static float Of(std::uint32_t device, std::uint32_t call, std::size_t i) {
    return static_cast<float>((device + 1) * (call % 50 + 1) + i % 7);
  }
  static float SumOf(std::uint32_t call, std::size_t i) {
    float sum = 0;
    for (std::uint32_t device = 0; device < kRanks * kDevices; ++device) sum += Of(device, call, i);
    return sum;
  }

  void Start(Communicator& rank, std::uint32_t call, bool drain) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = drain ? 0 : Of(device_, call, i);
    }
    DeviceCall made;
    made.spec.name = mode_.name;
    made.spec.description = std::string(mode_.name).append(" of the stress");
    made.spec.elements = mode_.elements;
    made.spec.reduce_scatter = mode_.reduce_scatter;
    made.spec.all_gather = mode_.all_gather;
    for (std::uint16_t r = 0; r < kRanks; ++r) made.spec.members.emplace_back(r);
    made.rank = device_;
    const std::uint32_t first = device_ / kDevices * kDevices;
    for (std::uint32_t d = 0; d < kDevices; ++d) made.local_ranks.push_back(first + d);
    // The call has two leaves.
    const std::uint64_t half = mode_.elements / 2;
    auto* const data = reinterpret_cast<std::byte*>(values_.data());
    made.leaves = {{.data = data, .elements = half},
                   {.data = data + half * sizeof(float), .elements = mode_.elements - half}};
    made.drain = drain;
    made.done = [this](const DeviceResult& result) {
      const std::lock_guard lock(mutex_);
      result_ = result;
      done_.notify_one();
    };
    {
      const std::lock_guard lock(mutex_);
      result_.reset();
    }
    rank.Start(std::move(made));
  }

  DeviceResult Wait() {
    std::unique_lock lock(mutex_);
    if (!done_.wait_for(lock, kHangs, [this] { return result_.has_value(); })) {
      Fail("a call of " + std::string(mode_.name) + " of device " + std::to_string(device_) +
           " does not end");
    }
    const CallStats& stats = result_->stats;
    for (const double part : {stats.missing_contributions, stats.missing_results, stats.deferred}) {
      Expect(part >= 0 && part <= 1, "a fraction of a call is " + std::to_string(part));
    }
    for (std::size_t i = 0; i < total_.size(); ++i) total_[i] += values_[i];
    return *result_;
  }

  const std::vector<float>& values() const { return values_; }
  const std::vector<double>& total() const { return total_; }
  const Mode& mode() const { return mode_; }

 private:
  const Mode& mode_;
  std::uint32_t device_;
  std::vector<float> values_;
  std::vector<double> total_;  // sum over the results of all calls
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<DeviceResult> result_;
};

// Runs the same program on a thread for each device of the ranks below `ranks`.
void OnEveryDevice(std::uint16_t ranks, const std::function<void(std::uint32_t device)>& program) {
  std::vector<std::thread> threads;
  for (std::uint32_t device = 0; device < ranks * kDevices; ++device) {
    threads.emplace_back(program, device);
  }
  for (std::thread& each : threads) each.join();
}

std::uint16_t RankOf(std::uint32_t device) { return static_cast<std::uint16_t>(device / kDevices); }

void CheckSum(const Bucket& bucket, std::uint32_t call) {
  for (std::size_t i = 0; i < bucket.values().size(); ++i) {
    if (bucket.values()[i] == Bucket::SumOf(call, i)) continue;
    Fail("element " + std::to_string(i) + " of call " + std::to_string(call) + " of " +
         bucket.mode().name + " is " + std::to_string(bucket.values()[i]) + " instead of " +
         std::to_string(Bucket::SumOf(call, i)));
  }
}

// All calls and their drain add up to the contributions of all devices.
void CheckConserved(const Bucket& bucket, std::uint32_t calls) {
  for (std::size_t i = 0; i < bucket.total().size(); ++i) {
    double all = 0;
    for (std::uint32_t call = 0; call < calls; ++call) all += Bucket::SumOf(call, i);
    if (bucket.total()[i] == all) continue;
    Fail("element " + std::to_string(i) + " of all calls of " + bucket.mode().name +
         " adds up to " + std::to_string(bucket.total()[i]) + " instead of " + std::to_string(all));
  }
}

bool Defers(const Mode& mode) { return mode.reduce_scatter == LatePolicy::kDefer; }

// The program of a device: calls of all modes, then the drains.
void CallAllModes(Communicator& rank, std::uint32_t device, std::uint32_t calls) {
  std::vector<std::unique_ptr<Bucket>> buckets;
  for (const Mode& mode : kModes) buckets.push_back(std::make_unique<Bucket>(mode, device));
  const auto wait = [](Bucket& bucket, std::uint32_t call) {
    const DeviceResult result = bucket.Wait();
    Expect(result.status.ok(), "a call failed: " + result.status.message());
    Expect(result.sequence.value() == call, "a call has the number of another one");
  };
  for (std::uint32_t call = 0; call < calls; ++call) {
    for (const auto& bucket : buckets) bucket->Start(rank, call, /*drain=*/false);
    for (const auto& bucket : buckets) {
      wait(*bucket, call);
      if (bucket->mode().reduce_scatter == LatePolicy::kWait) CheckSum(*bucket, call);
    }
  }
  std::erase_if(buckets, [](const auto& bucket) { return !Defers(bucket->mode()); });
  for (const auto& bucket : buckets) bucket->Start(rank, calls, /*drain=*/true);
  for (const auto& bucket : buckets) {
    wait(*bucket, calls);
    CheckConserved(*bucket, calls);
  }
}

// Concurrent calls of all modes, on a network that loses and reorders, under observation.
void AllModes(std::uint32_t calls) {
  Session session({.faults = {.loss_ppm = 10'000, .reorder_ppm = 10'000, .seed = 1}});
  std::atomic<bool> over = false;
  std::thread reader([&] {
    while (!over) {
      for (std::uint16_t r = 0; r < kRanks; ++r) {
        Expect(session.Counter(r, "live_processes") == kRanks, "a rank was removed");
        for (const CallRecord& record : session.rank(r).FlightRecords()) {
          Expect(record.number > 0, "a record without a number");
        }
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
  });
  OnEveryDevice(kRanks, [&](std::uint32_t device) {
    CallAllModes(session.rank(RankOf(device)), device, calls);
  });
  over = true;
  reader.join();
  for (std::uint16_t r = 0; r < kRanks; ++r) {
    // Calls of each mode but lossy, and the drains of two modes.
    Expect(session.Counter(r, "calls_completed") == kModes.size() * calls + 2, "a call is missing");
    Expect(session.Counter(r, "calls_failed") == 0, "a call failed");
  }
}

// One rank stops during its calls: all its calls end, and so do those of the others.
void EndUnderWay(std::uint32_t calls, const std::function<void(Communicator& rank)>& stop) {
  Session session({.faults = {.loss_ppm = 1'000, .seed = 2}});
  std::thread stopper([&] {
    std::this_thread::sleep_for(milliseconds(20));
    stop(session.rank(kOther));
  });
  OnEveryDevice(kRanks, [&](std::uint32_t device) {
    Communicator& rank = session.rank(RankOf(device));
    Bucket exact(kModes[kExact], device);
    Bucket bounded(kModes[kBounded], device);
    for (std::uint32_t call = 0; call < calls; ++call) {
      exact.Start(rank, call, false);
      bounded.Start(rank, call, false);
      const DeviceResult first = exact.Wait();
      const DeviceResult second = bounded.Wait();
      if (first.status.ok()) CheckSum(exact, call);
      if (first.status.ok() && second.status.ok()) continue;
      // A process that ends with an error closes its session.
      rank.Close("a call failed");
      return;
    }
  });
  stopper.join();
}

// The other ranks continue without a silent rank.
void Silent(std::uint32_t calls) {
  Session session({.faults = {},
                   .other_silent = true,
                   .peer_timeout = seconds(1),
                   .deadline = milliseconds(50)});
  OnEveryDevice(kOther, [&](std::uint32_t device) {
    Communicator& rank = session.rank(RankOf(device));
    Bucket bounded(kModes[kBounded], device);
    std::uint16_t live = kRanks;
    for (std::uint32_t call = 0; call < calls || live == kRanks; ++call) {
      bounded.Start(rank, call, false);
      const DeviceResult result = bounded.Wait();
      Expect(result.status.ok(), "a bounded call failed: " + result.status.message());
      live = result.stats.live;
    }
    Expect(live == kOther, "a call had " + std::to_string(live) + " members");
  });
  for (std::uint16_t r = 0; r < kOther; ++r) {
    Expect(session.Counter(r, "live_processes") == kOther, "the silent rank is still there");
  }
}

int Main(std::span<char*> arguments) {
  int calls = kCallsDefault;
  if (!arguments.empty()) {
    const std::string_view text = arguments[0];
    std::from_chars(text.data(), text.data() + text.size(), calls);
  }
  const auto count = static_cast<std::uint32_t>(std::max(calls, 1));
  const std::pair<const char*, std::function<void()>> scenes[] = {
      {"all modes", [&] { AllModes(count); }},
      {"close", [&] { EndUnderWay(count, [](Communicator& rank) { rank.Close("it stops"); }); }},
      {"cancel", [&] { EndUnderWay(count, [](Communicator& rank) { rank.Cancel("it stops"); }); }},
      {"silence", [&] { Silent(count); }}};
  for (const auto& [name, play] : scenes) {
    scene = name;
    const auto start = std::chrono::steady_clock::now();
    play();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%s: %.1f s\n", name, took.count());
    std::fflush(stdout);
  }
  std::printf("OK\n");
  return 0;
}

}  // namespace
}  // namespace optireduce

int main(int count, char** arguments) {
  return optireduce::Main(std::span(arguments, static_cast<std::size_t>(count)).subspan(1));
}
