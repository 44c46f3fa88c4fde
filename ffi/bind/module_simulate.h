// The simulator, for Python.

#ifndef FFI_BIND_MODULE_SIMULATE_H_
#define FFI_BIND_MODULE_SIMULATE_H_

#include <nanobind/nanobind.h>

namespace optireduce {

// Adds `simulate` to the module. A file of its own: the simulator and the network have nothing in
// common, and no other file includes both.
void BindSimulate(nanobind::module_& module);

}  // namespace optireduce

#endif  // FFI_BIND_MODULE_SIMULATE_H_
