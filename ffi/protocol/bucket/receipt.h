#ifndef FFI_PROTOCOL_BUCKET_RECEIPT_H_
#define FFI_PROTOCOL_BUCKET_RECEIPT_H_

#include <cstdint>

namespace optireduce {

// The outcome of a segment that arrived. Stale: its call is over, and it is lost.
enum class Receipt : std::uint8_t { kNew, kDuplicate, kLate, kStale, kMismatched };

}  // namespace optireduce

#endif  // FFI_PROTOCOL_BUCKET_RECEIPT_H_
