// What to do about loss, in modes that drop what is late. All members must decide alike, so the
// input is a loss that all of them know: one that was itself exchanged, a call before. The source
// of the defaults are descriptions of the paper, which prints no figures.

#ifndef FFI_PROTOCOL_SAFEGUARDS_H_
#define FFI_PROTOCOL_SAFEGUARDS_H_

#include <bitset>
#include <cstddef>
#include <cstdint>

namespace optireduce {

// Whether the next call spreads its losses by the Hadamard transform.
class HadamardSwitch {
 public:
  // `loss` of a call: the share of the data that is missing, 0 to 1.
  void EndCall(double loss);
  bool on() const { return on_; }

 private:
  bool on_ = false;
  std::size_t quiet_calls_ = 0;  // one after the other
};

// Chosen: as the paper is described, which prints no figure: an update with more than 10 % missing
// is skipped.
inline constexpr double kMissingMax = 0.1;

enum class SafeguardAction : std::uint8_t {
  kNone,
  kRecalibrate,  // measure the hard bound again
  kReliable,     // the next call waits for everything
  kCallUser,     // nothing helps: stop, and go back to the last good state
};

struct SafeguardDecision {
  bool skip = false;  // this call's result is not to be used, by nobody
  SafeguardAction action = SafeguardAction::kNone;
};

// Whether the result of a call may be used, and what follows if too many may not.
class SkipPolicy {
 public:
  explicit SkipPolicy(double missing_max = kMissingMax);

  // `missing` of a call, reliable ones included: the share of the data, 0 to 1.
  SafeguardDecision EndCall(double missing);

 private:
  // Chosen: as the paper is described, which prints no figure: skips are counted over 20 calls.
  static constexpr std::size_t kWindowCalls = 20;

  double missing_max_;
  std::bitset<kWindowCalls> skipped_;  // of the last calls; bit 0 is the latest
  std::size_t skips_in_a_row_ = 0;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SAFEGUARDS_H_
