// The extension module `_testing`: lets pytest reach the C++ classes below the public ones. Built
// for tests only. Each function adds the classes of one part.

#ifndef FFI_BIND_TESTING_H_
#define FFI_BIND_TESTING_H_

#include <nanobind/nanobind.h>

namespace optireduce {

void BindFuzz(nanobind::module_& m);
void BindAllocations(nanobind::module_& m);
void BindCodec(nanobind::module_& m);  // and crypto
void BindSchedule(nanobind::module_& m);
void BindSim(nanobind::module_& m);
void BindNet(nanobind::module_& m);
void BindProtocol(nanobind::module_& m);
void BindControl(nanobind::module_& m);
void BindMembership(nanobind::module_& m);
void BindWatch(nanobind::module_& m);
void BindCarry(nanobind::module_& m);
void BindRate(nanobind::module_& m);  // and incast

}  // namespace optireduce

#endif  // FFI_BIND_TESTING_H_
