#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ffi/bind/module_parts.h"
#include "ffi/runtime/communicator_options.h"

namespace optireduce {
namespace {

namespace nb = nanobind;

[[noreturn]] void Raise(const std::string& message) { throw nb::value_error(message.c_str()); }

template <typename T>
T Cast(const char* setting, nb::handle value) {
  T cast;
  if (!nb::try_cast(value, cast)) Raise(std::string(setting) + " has a wrong type or value.");
  return cast;
}

// Reads `setting` as the type of its field.
template <typename T>
void Read(const char* setting, nb::handle value, T& field) {
  field = Cast<T>(setting, value);
}

void Read(const char* setting, nb::handle value, Rank& field) {
  field = Rank(Cast<std::uint16_t>(setting, value));
}

void Read(const char* setting, nb::handle value, Duration& field) {
  field = Seconds(setting, Cast<double>(setting, value));
}

void Read(const char* setting, nb::handle value, Secret& field) {
  const auto bytes = Cast<nb::bytes>(setting, value);
  if (bytes.size() != field.size()) {
    Raise(std::string(setting) + " must be " + std::to_string(field.size()) + " bytes, got " +
          std::to_string(bytes.size()) +
          "; make one with secrets.token_bytes() on rank 0 and share it.");
  }
  std::memcpy(field.data(), bytes.data(), field.size());
}

void Read(const char* setting, nb::handle value, Protection& field) {
  static const std::map<std::string, Protection> kByName = {
      {"authenticated", Protection::kAuthenticate},
      {"encrypted", Protection::kEncrypt},
      {"none", Protection::kNone}};
  const auto name = Cast<std::string>(setting, value);
  const auto found = kByName.find(name);
  if (found == kByName.end()) Raise(std::string(setting) + " cannot be '" + name + "'.");
  field = found->second;
}

void Read(const char* setting, nb::handle value, std::optional<Faults>& field) {
  const auto faults = Cast<std::map<std::string, double>>(setting, value);
  if (faults.empty()) return;
  Result<Faults> read = Faults::FromMap(faults);
  if (!read.ok()) Raise(read.status().message());
  field = read.value();
}

}  // namespace

Duration Seconds(const char* setting, double seconds) {
  // Chosen: a limit that no duration overflows at, and beyond any useful timeout.
  constexpr double kSecondsMax = 1e9;
  if (!(seconds >= 0 && seconds <= kSecondsMax)) {
    Raise(std::string(setting) + " must be seconds, got " + std::to_string(seconds) + ".");
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

CommunicatorOptions SettingsOf(const nb::dict& settings) {
  CommunicatorOptions options;
  ForEachSetting(options, [&](const char* setting, auto& field) {
    if (!settings.contains(setting)) Raise(std::string(setting) + " is missing.");
    Read(setting, settings[setting], field);
  });
  return options;
}

}  // namespace optireduce
