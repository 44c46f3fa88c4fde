// Errors for a user. The project separates three kinds of failure: loss is data (a counter), an
// operating error is a `Status`, and a broken invariant is an `OR_CHECK` (check.h).

#ifndef FFI_BASE_STATUS_H_
#define FFI_BASE_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/base/check.h"
#include "ffi/base/ids.h"

namespace optireduce {

// Numerically equal to XLA_FFI_Error_Code (asserted in bind/), so that a status needs no table
// there.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13,
  kUnavailable = 14,
};

// The causes of a call's error that a program can tell apart. The values are part of the wire
// format: never renumber.
enum class Cause : std::uint8_t {
  kOther = 0,
  kPeerLost = 1,      // a rank is silent, has left, or was removed
  kPathTooSmall = 2,  // long datagrams to a rank do not arrive
  kDisagreement = 3,  // the ranks make different calls
  kCallTimeout = 4,   // a rank does not call
  kCancelled = 5,     // a program cancelled its calls
};

// The cause of an error, and the ranks that it is about.
struct Blame {
  Cause cause = Cause::kOther;
  std::vector<Rank> ranks{};  // ascending; empty: this process alone
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, Blame blame = {})
      : code_(code), message_(std::move(message)), blame_(std::move(blame)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const Blame& blame() const { return blame_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  Blame blame_;
};

inline Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

// A value, or the status that explains its absence.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) { OR_CHECK(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() {
    OR_CHECK(ok());
    return *value_;
  }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace optireduce

#endif  // FFI_BASE_STATUS_H_
