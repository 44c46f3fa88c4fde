// The extension module `optireduce_testing`, by which pytest accesses the internal C++ classes.
// Built for tests only. Each file here adds the classes of one part, by a Binding.

#ifndef TESTS_NATIVE_BINDING_H_
#define TESTS_NATIVE_BINDING_H_

#include <nanobind/nanobind.h>
// The conversions of types, in one place: every file of a module must have the same ones.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/base/time.h"

// Each file has a namespace of its own: several are compiled as one (UNITY_BUILD_UNIQUE_ID). A file
// that is compiled alone has the one without a name.
#ifndef OR_FILE
#define OR_FILE
#endif

namespace optireduce::testing {

namespace nb = nanobind;
using nb::literals::operator""_a;

// Registers a function that adds to the module, before the module is created.
class Binding {
 public:
  using Bind = void (*)(nb::module_&);
  explicit Binding(Bind bind) { All().push_back(bind); }
  static std::vector<Bind>& All() {
    static std::vector<Bind> all;
    return all;
  }
};

// ---- Conversions. Times are in seconds unless a name says otherwise.

inline Duration FromSeconds(double seconds) {
  // Rounded: an instant must survive the conversion to seconds and back.
  return std::chrono::round<Duration>(std::chrono::duration<double>(seconds));
}
inline Instant At(double seconds) { return Instant(FromSeconds(seconds)); }
inline double ToSeconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}
inline double ToSeconds(Instant at) { return ToSeconds(at.time_since_epoch()); }

inline std::span<const std::byte> BytesOf(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}
inline nb::bytes ToBytes(std::span<const std::byte> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

// Errors become ValueError, or RuntimeError if the arguments are not the cause.
inline void RaiseUnlessOk(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kInvalidArgument) {
    throw nb::value_error(status.message().c_str());
  }
  throw std::runtime_error(status.message());
}
template <typename T>
T Unwrap(Result<T> result) {
  RaiseUnlessOk(result.status());
  return std::move(result.value());
}

}  // namespace optireduce::testing

#endif  // TESTS_NATIVE_BINDING_H_
