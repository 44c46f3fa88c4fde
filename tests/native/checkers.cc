// The checkers of the simulator, each alone, over one scenario. Times are in seconds.

#include "ffi/sim/bounds.h"
#include "ffi/sim/error_checker.h"
#include "ffi/sim/leaf_checker.h"
#include "ffi/sim/removal_checker.h"
#include "ffi/sim/result_checker.h"
#include "ffi/sim/run_log.h"
#include "ffi/sim/time_checker.h"
#include "ffi/sim/traffic_checker.h"
#include "tests/native/binding.h"

namespace optireduce::testing {
namespace OR_FILE {

class CheckedRun {
 public:
  explicit CheckedRun(const std::string& scenario) : scenario_(Unwrap(ParseScenario(scenario))) {}

  // A submitted call of the first collective. Returns its token.
  std::size_t Submit(double now, std::uint16_t rank, std::size_t index) {
    const SimCall call{.collective = 0, .index = index};
    SimCallRecord& record = log_.calls.emplace_back();
    record.rank = Rank(rank);
    record.call = call;
    record.collective = workload_.CollectiveAt(0, Rank(rank));
    record.drain = workload_.IsDrain(record.collective, call);
    record.submitted_at = At(now);
    record.submitted = true;
    record.owed.resize(scenario_.lanes);
    leaves_of_.push_back(leaves_.MakeLeaves(At(now), record));
    log_.RecordCall(At(now), record);
    return log_.calls.size() - 1;
  }
  // Changes a byte at this distance from the begin of the first leaf.
  void Write(std::size_t token, std::ptrdiff_t at) {
    leaves_of_[token][0].data[at] ^= std::byte{1};
  }
  void EndLeaves(double now, std::size_t token) {
    SimCallRecord& record = log_.calls[token];
    record.done = true;
    leaves_.EndCall(At(now), record);
  }
  void FinishLeaves(double now) { leaves_.Finish(At(now)); }
  // The sum of all, plus `error` in the first element; of float32.
  void CheckResult(double now, std::size_t token, float error, double missing) {
    const SimCallRecord& record = log_.calls[token];
    std::vector<std::byte> bucket = workload_.Reference(record.collective, record.call);
    const ElementType type = ElementType::kFloat32;
    StoreElement(type, LoadElement(type, bucket.data()) + error, bucket.data());
    CallStats stats;
    stats.missing_contributions = missing;
    stats.live = static_cast<std::uint16_t>(scenario_.ranks);
    results_.Check(At(now), record, bucket, stats);
  }
  void CheckTime(double now, std::size_t token, double elapsed) {
    CallDone done{.token = token, .status = {}, .stats = {}};
    done.stats.elapsed = FromSeconds(elapsed);
    times_.Check(At(now), log_.calls[token], done);
  }
  void CheckError(double now, std::size_t token, const std::string& message) {
    errors_.Check(At(now), log_.calls[token], Status(StatusCode::kUnavailable, message));
  }
  void Stop(double now, std::uint16_t rank) { log_.ranks[rank].stopped_at = At(now); }
  // `rank` has received a datagram of `from`.
  void Hear(double now, std::uint16_t rank, std::uint16_t from) {
    Counters counters;
    counters.datagrams_received = ++heard_;
    traffic_.Delivered(At(now), {Rank(from), Rank(rank), Origin::kGenuine, {}}, counters);
  }
  void Poll(double now, std::uint16_t rank, std::uint16_t to, std::size_t bytes) {
    const std::vector<std::byte> datagram(bytes);
    const std::span<const std::byte> piece(datagram);
    traffic_.Polled(
        At(now), Rank(rank),
        {.to = Rank(to), .pieces = {&piece, 1}, .bytes = bytes, .datagram_bytes = bytes}, 1);
  }
  void RecordView(double now, std::uint16_t rank, const std::vector<std::uint16_t>& view) {
    removals_.RecordView(At(now), Rank(rank), {view.begin(), view.end()});
  }
  const std::string& failure() const { return log_.failure; }

 private:
  Scenario scenario_;
  Workload workload_{scenario_};
  RunLog log_{scenario_, workload_};
  Bounds bounds_{scenario_, workload_};
  LeafChecker leaves_{log_};
  ResultChecker results_{log_};
  TimeChecker times_{log_, bounds_};
  ErrorChecker errors_{log_, bounds_};
  RemovalChecker removals_{log_, bounds_, results_};
  TrafficChecker traffic_{log_, bounds_};
  std::vector<std::vector<Leaf>> leaves_of_;  // one for each token
  std::uint64_t heard_ = 0;
};

void Bind(nb::module_& m) {
  nb::class_<CheckedRun>(m, "CheckedRun")
      .def(nb::init<const std::string&>())
      .def("submit", &CheckedRun::Submit, "now"_a, "rank"_a, "index"_a = 0)
      .def("write", &CheckedRun::Write)
      .def("end_leaves", &CheckedRun::EndLeaves)
      .def("finish_leaves", &CheckedRun::FinishLeaves)
      .def("check_result", &CheckedRun::CheckResult, "now"_a, "token"_a, "error"_a = 0.0f,
           "missing"_a = 0.0)
      .def("check_time", &CheckedRun::CheckTime)
      .def("check_error", &CheckedRun::CheckError)
      .def("stop", &CheckedRun::Stop)
      .def("hear", &CheckedRun::Hear)
      .def("poll", &CheckedRun::Poll)
      .def("note_view", &CheckedRun::RecordView)
      .def_prop_ro("failure", &CheckedRun::failure);
}

const Binding binding(&Bind);

}  // namespace OR_FILE
}  // namespace optireduce::testing
