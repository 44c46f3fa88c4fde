// Checks of options and submissions, as far as they need nothing but these values.

#ifndef FFI_PROTOCOL_SESSION_ARGUMENT_CHECKS_H_
#define FFI_PROTOCOL_SESSION_ARGUMENT_CHECKS_H_

#include <cstddef>

#include "ffi/base/status.h"
#include "ffi/protocol/collective/collective.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Longest name of a collective between ranks, in bytes.
// Chosen: an announcement with its members and the longest name fits the smallest datagram.
inline constexpr std::size_t kWireNameBytesMax = 200;

Status CheckOptions(const EndpointOptions& options);
// The facts of a collective that this rank is to call.
Status CheckSpec(const CollectiveSpec& spec, const EndpointOptions& options);
// The leaves have the elements of the collective.
Status CheckLeaves(const Submission& submission);
// The number of the call is greater than those of the program's calls before, and can be used.
Status CheckSequence(const Collective& collective, const Submission& submission);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_ARGUMENT_CHECKS_H_
