// One rank's end of a session: all its calls and all its peers, as a state machine without sockets,
// clocks, threads or randomness. A driver (runtime/lane.cc on UDP, sim/simulate.cc in virtual time)
// feeds it and drains it:
//
//   Submit, HandleDatagram, HandleTimeout   go in;
//   PollTransmit, PollTimeout, PollEvent    come out.
//
// After any of the three that go in, poll the three that come out: PollTransmit until it returns
// nothing (or the network takes no more), PollEvent until it returns nothing, and PollTimeout once.
// Sending may create events and events may need sending, so poll events after transmits. A driver
// that could not send may come back later: nothing is lost by not polling.
//
// Owned by one thread. Not thread-safe, on purpose.

#ifndef FFI_PROTOCOL_ENDPOINT_H_
#define FFI_PROTOCOL_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ffi/base/bytes.h"
#include "ffi/base/ids.h"
#include "ffi/base/status.h"
#include "ffi/base/time.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/stats.h"
#include "ffi/protocol/submission.h"
#include "ffi/protocol/transmit.h"

namespace optireduce {

// Whom a call that is under way waits for.
struct WaitingCall {
  std::uint64_t token = 0;   // of its submission
  std::vector<Rank> ranks;   // their contributions are missing, or else their results
  std::vector<Rank> absent;  // of these, the ones that have not shown that they are in this call
};

// What of a collective has missed its calls and is in none yet.
struct LateData {
  std::string description;  // of the collective
  std::uint64_t bytes = 0;
};

class Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> Create(const EndpointOptions& options);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Starts a call. Exactly one CallDone with its token follows, sooner or later, unless this
  // returns an error: wrong members, a member that is gone, a sequence that does not grow.
  Status Submit(Instant now, Submission submission);

  // Takes one UDP payload, from anywhere: what does not belong here is counted and has no effect.
  void HandleDatagram(Instant now, std::span<const std::byte> datagram);

  // Does what is due. Spurious calls are harmless.
  void HandleTimeout(Instant now);

  // Makes the next datagrams to send; `buffer` must hold at least one of the session's largest.
  // `batch_max` limits how many (1 where the kernel has no segmentation offload).
  std::optional<Transmit> PollTransmit(Instant now, std::span<std::byte> buffer,
                                       std::size_t batch_max);

  // When to call HandleTimeout; kNever when nothing is pending.
  Instant PollTimeout() const;

  std::optional<CallDone> PollEvent();

  // The ranks that take part in calls that go on without those that are silent.
  std::vector<Rank> live() const;

  // Peers that were silent for too long, and have not been heard since. One that has left in good
  // order is not among them.
  std::vector<Rank> silent() const;
  // Peers that have not acknowledged that this rank leaves, and are not known to be gone.
  std::vector<Rank> unreached() const;

  // What the calls submitted before `before` and not over yet wait for.
  std::vector<WaitingCall> WaitingCalls(Instant before) const;

  // What would be lost, as far as this rank knows, if no call and no drain followed: late data that
  // is here, that peers are to get from here, or that its newest calls lacked. What a wire format
  // has rounded away is not in it.
  std::vector<LateData> FindLateData() const;

  // Fails every call under way with `why`, which is not ok; their leaves are not touched any more.
  // The endpoint stays usable. Peers that wait for this rank in one of these calls, or come to it
  // later, get an error that says why.
  void Cancel(Instant now, const Status& why);
  // The program never makes this call, though its number is used up; `why` is not ok. Peers learn
  // it as of one that is cancelled. The call needs no leaves, and nothing follows.
  void GiveUp(Instant now, Submission call, const Status& why);

  // Fails every call with `why`, which is not ok, and tells the peers that this rank leaves, so
  // that theirs need not wait for a timeout. Further submissions are refused.
  void Leave(Instant now, const Status& why);
  // After Leave(): every peer that still listens has what it needs from this rank, and knows.
  bool finished() const;

  // Bytes held for calls, beyond the leaves themselves.
  std::size_t memory_bytes() const;

  const Counters& counters() const;

 private:
  class Impl;
  explicit Endpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_ENDPOINT_H_
