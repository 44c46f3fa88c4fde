// The settings of a communicator, from the dictionary of a Python program.

#ifndef FFI_BIND_MODULE_SETTINGS_H_
#define FFI_BIND_MODULE_SETTINGS_H_

#include <nanobind/nanobind.h>

#include "ffi/base/time.h"
#include "ffi/runtime/communicator_options.h"

namespace optireduce {

// Raises ValueError, which names the setting, unless the number is from 0 to the longest time.
Duration Seconds(const char* setting, double seconds);

// The values of ForEachSetting(), all of which have to be given; other keys are ignored. Raises
// ValueError, which names the setting.
CommunicatorOptions SettingsOf(const nanobind::dict& settings);

}  // namespace optireduce

#endif  // FFI_BIND_MODULE_SETTINGS_H_
