#include <nanobind/nanobind.h>

#include "ffi/bind/testing.h"

NB_MODULE(_testing, m) {
  m.doc() = "The C++ classes of jax_optireduce, for its own tests.";
  optireduce::BindAllocations(m);
  optireduce::BindFuzz(m);
  optireduce::BindCodec(m);
  optireduce::BindSchedule(m);
  optireduce::BindSim(m);
  optireduce::BindNet(m);
  optireduce::BindProtocol(m);
  optireduce::BindControl(m);
  optireduce::BindMembership(m);
  optireduce::BindWatch(m);
  optireduce::BindCarry(m);
  optireduce::BindRate(m);
}
