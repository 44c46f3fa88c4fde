// The parts of the extension module that have files of their own.

#ifndef FFI_BIND_MODULE_PARTS_H_
#define FFI_BIND_MODULE_PARTS_H_

#include <nanobind/nanobind.h>

#include "ffi/base/time.h"

namespace optireduce {

struct CommunicatorOptions;

// Raises ValueError, which names the setting, unless the number is from 0 to the longest time.
Duration Seconds(const char* setting, double seconds);

// The values of ForEachSetting(), all of which have to be given; other keys are ignored. Raises
// ValueError, which names the setting.
CommunicatorOptions SettingsOf(const nanobind::dict& settings);

// Adds `reduce_and_wait`: calls from Python code outside of programs.
void BindHostCalls(nanobind::module_& module);

// Adds `simulate` and `scenario_fields`. The simulator and the network have nothing in common, and
// no file includes both.
void BindSimulate(nanobind::module_& module);

}  // namespace optireduce

#endif  // FFI_BIND_MODULE_PARTS_H_
