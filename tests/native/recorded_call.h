// A call as the flight recorder records it.

#ifndef TESTS_NATIVE_RECORDED_CALL_H_
#define TESTS_NATIVE_RECORDED_CALL_H_

#include <cstdint>
#include <string>

#include "ffi/base/status.h"
#include "ffi/protocol/submission.h"

namespace optireduce::testing {

inline Submission MakeCall(const std::string& name, std::uint32_t sequence,
                           std::uint64_t elements) {
  Submission submission;
  submission.spec.name = name;
  submission.spec.description = name + " f32";
  submission.spec.elements = elements;
  submission.sequence = Sequence(sequence);
  return submission;
}

inline Status StatusOf(int code, const std::string& message) {
  return code == 0 ? Status() : Status(static_cast<StatusCode>(code), message);
}

}  // namespace optireduce::testing

#endif  // TESTS_NATIVE_RECORDED_CALL_H_
