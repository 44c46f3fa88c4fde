// Errors for a user. The project separates three kinds of failure: loss is data (a counter), an
// operating error is a `Status`, and a broken invariant is an `OR_CHECK` (check.h).

#ifndef FFI_BASE_STATUS_H_
#define FFI_BASE_STATUS_H_

#include <optional>
#include <string>
#include <utility>

#include "ffi/base/check.h"

namespace optireduce {

// Numerically equal to XLA_FFI_Error_Code (asserted in bind/), so that a status needs no table
// there.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
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
