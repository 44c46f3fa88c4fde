// The number of peers that may send to this rank at full rate at the same time, which it advertises
// to them. Only paces senders: data is accepted from any peer at any time.

#ifndef FFI_PROTOCOL_PATH_INCAST_CONTROLLER_H_
#define FFI_PROTOCOL_PATH_INCAST_CONTROLLER_H_

#include <cstdint>

namespace optireduce {

class IncastController {
 public:
  // Begins with `most`: the number of peers, or the largest value of the wire format.
  explicit IncastController(std::uint8_t most) : most_(most), incast_(most) {}

  // Handles the end of a call. Since the previous call, peers have sent `expected` datagrams of
  // which `lost` did not arrive.
  void HandleCall(std::uint64_t expected, std::uint64_t lost);

  std::uint8_t incast() const { return incast_; }

 private:
  std::uint8_t most_;
  std::uint8_t incast_;
  // Segments since the last decision.
  std::uint64_t expected_ = 0;
  std::uint64_t lost_ = 0;
  int clean_calls_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_INCAST_CONTROLLER_H_
