// TCP bursts of heavy-tailed sizes, from hosts outside of the session to the hosts of its ranks:
// the traffic that others have in a data centre. Each burst is a CrossTraffic of a limited size;
// the bursts to a host share its down-link with each other and with the session.

#ifndef FFI_SIM_TCP_BURSTS_H_
#define FFI_SIM_TCP_BURSTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ffi/base/prng.h"
#include "ffi/base/time.h"
#include "ffi/sim/cross_traffic.h"
#include "ffi/sim/event_queue.h"
#include "ffi/sim/link.h"

namespace optireduce {

struct TcpBurstOptions {
  std::uint64_t seed = 0;
  double bytes_per_s = 0;  // load that bursts bring to each host, on average
  double mean_bytes = 1;   // mean size of a burst
  Instant end{};           // no data is sent from then on
  Duration way_back{};     // latency of an acknowledgement
};

class TcpBursts {
 public:
  TcpBursts(const TcpBurstOptions& options, std::size_t hosts);

  // Time of the next Step; kNever after the end.
  Instant next() const { return events_.next(); }
  // `down`: the down-links of the hosts.
  void Step(std::span<Link> down);

 private:
  struct Burst {
    std::size_t host = 0;
    CrossTraffic traffic;
  };
  // The next step of a burst, or the begin of one to a host.
  struct Event {
    bool begins = false;
    std::size_t index = 0;  // index of the host, or of the burst
  };

  // Uniform in (0, 1).
  double Uniform();
  void ScheduleBurst(Instant now, std::size_t host);
  void Begin(Instant now, std::size_t host);

  TcpBurstOptions options_;
  Prng prng_;
  EventQueue<Event> events_;  // one for each host, and one for each burst under way
  std::vector<Burst> bursts_;
  std::vector<std::size_t> ended_;  // places of ended bursts
};

}  // namespace optireduce

#endif  // FFI_SIM_TCP_BURSTS_H_
