// Names in messages.

#ifndef FFI_BASE_QUOTED_H_
#define FFI_BASE_QUOTED_H_

#include <string>
#include <string_view>

namespace optireduce {

inline std::string Quoted(std::string_view text) {
  std::string quoted(1, '\'');
  quoted += text;
  quoted += '\'';
  return quoted;
}

}  // namespace optireduce

#endif  // FFI_BASE_QUOTED_H_
