// How many peers may send to this rank at full rate at the same time: what it advertises to them.
// It paces senders and decides nothing else; whatever arrives is taken, from anyone, at any time.

#ifndef FFI_PROTOCOL_PATH_INCAST_CONTROLLER_H_
#define FFI_PROTOCOL_PATH_INCAST_CONTROLLER_H_

#include <cstdint>

namespace optireduce {

class IncastController {
 public:
  // Begins with `most`: the number of peers, or what the wire can say.
  explicit IncastController(std::uint8_t most) : most_(most), incast_(most) {}

  // A call has ended. Since the call before, peers have sent `expected` datagrams of which `lost`
  // did not arrive, and `timeouts` stages were closed with something missing.
  void HandleCall(std::uint64_t expected, std::uint64_t lost, std::uint64_t timeouts);

  std::uint8_t incast() const { return incast_; }

 private:
  std::uint8_t most_;
  std::uint8_t incast_;
  // Since the last decision.
  std::uint64_t expected_ = 0;
  std::uint64_t lost_ = 0;
  int clean_calls_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_PATH_INCAST_CONTROLLER_H_
