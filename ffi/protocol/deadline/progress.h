// The deadline that maximises the progress of a program per second.
//
// A call whose data is late in part is worth less: data that is late counts nothing in its call. A
// shorter deadline makes a step shorter by the waits that it cuts off. But data that is late
// because its link was busy still has to be sent, and takes the time of the next call: a step is
// never shorter than the computation and the longest transfer together. So waits for programs can
// be cut off, and those for a full link cannot.
// Related: DropCompute (NeurIPS 2023) maximises such a quotient for the computation.

#ifndef FFI_PROTOCOL_DEADLINE_PROGRESS_H_
#define FFI_PROTOCOL_DEADLINE_PROGRESS_H_

#include "ffi/base/time.h"
#include "ffi/protocol/deadline/latency_histogram.h"

namespace optireduce {

struct Waits {
  const LatencyHistogram& data;   // the data, by arrival after the opening of its call
  const LatencyHistogram& calls;  // the calls, by the arrival of nearly all of their data
  Duration computation{};         // the computation of a step, without the wait for data
  Duration transfer{};  // the mean transfer of a step's data, without the wait for programs
};

// The deadline between `least` and `most` with the most progress; `most` unless another one has
// noticeably more.
Duration BestDeadline(const Waits& waits, Duration least, Duration most);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_DEADLINE_PROGRESS_H_
