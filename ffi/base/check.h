// Invariants. `OR_CHECK` is always on: a broken invariant is a bug of this library, and continuing
// would add wrong numbers to gradients. The lane catches the exception in its loop and fails its
// calls.

#ifndef FFI_BASE_CHECK_H_
#define FFI_BASE_CHECK_H_

#include <stdexcept>
#include <string>

namespace optireduce {

class BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void FailCheck(const char* expression, const char* file, int line) {
  throw BrokenInvariant(std::string(file) + ":" + std::to_string(line) +
                        ": broken invariant: " + expression);
}

}  // namespace optireduce

#define OR_CHECK(expression)                                    \
  do {                                                          \
    if (!(expression)) [[unlikely]]                             \
      ::optireduce::FailCheck(#expression, __FILE__, __LINE__); \
  } while (false)

#endif  // FFI_BASE_CHECK_H_
