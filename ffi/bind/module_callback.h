// Calls from Python callbacks, as a part of the extension module.

#ifndef FFI_BIND_MODULE_CALLBACK_H_
#define FFI_BIND_MODULE_CALLBACK_H_

#include <nanobind/nanobind.h>

namespace optireduce {

// Adds `reduce_and_wait` and `take_number` to the module.
void BindCallback(nanobind::module_& module);

}  // namespace optireduce

#endif  // FFI_BIND_MODULE_CALLBACK_H_
