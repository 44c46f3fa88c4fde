#include <nanobind/nanobind.h>

#include "tests/native/binding.h"

NB_MODULE(optireduce_testing, m) {
  m.doc() = "The C++ classes of jax_optireduce, for its own tests.";
  for (const auto bind : optireduce::testing::Binding::All()) bind(m);
}
