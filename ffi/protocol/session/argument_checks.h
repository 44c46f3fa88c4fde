// Checks of options and submissions, as far as they need nothing but these values.

#ifndef FFI_PROTOCOL_SESSION_ARGUMENT_CHECKS_H_
#define FFI_PROTOCOL_SESSION_ARGUMENT_CHECKS_H_

#include <cstddef>
#include <string>

#include "ffi/base/status.h"
#include "ffi/protocol/options.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

// Chosen: an announcement with its members and the longest name fits the smallest datagram.
inline constexpr std::size_t kNameBytesMax = 200;

// An invalid argument; the message says what is wrong.
Status Invalid(std::string message);
Status CheckOptions(const EndpointOptions& options);
Status CheckSpec(const CollectiveSpec& spec, const EndpointOptions& options);
// The leaves have the elements of the collective.
Status CheckLeaves(const Submission& submission);

}  // namespace optireduce

#endif  // FFI_PROTOCOL_SESSION_ARGUMENT_CHECKS_H_
