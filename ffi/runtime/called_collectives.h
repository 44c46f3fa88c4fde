// The collectives that this process has called, for its drains. A drain that fits none of them
// would return no data, and the data in flight would be lost.

#ifndef FFI_RUNTIME_CALLED_COLLECTIVES_H_
#define FFI_RUNTIME_CALLED_COLLECTIVES_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ffi/base/status.h"
#include "ffi/protocol/submission.h"

namespace optireduce {

class CalledCollectives {
 public:
  // A call that is no drain. Calls of a program that differ by their place only have one
  // key and one fingerprint.
  void Note(const std::string& key, const CollectiveSpec& spec);

  // Ok if a drain fits a call, or if no call can have left data for it. Otherwise an error that
  // names the nearest calls. `if_any`: the absence of a call with its key is no error.
  Status Check(const std::string& key, const CollectiveSpec& drain, bool if_any) const;

 private:
  // Drainable collectives with a similar key; if there are none, the first few.
  std::string Nearest(const std::string& key) const;

  std::map<std::string, std::vector<CollectiveSpec>> calls_;  // by key
  std::size_t noted_ = 0;
  bool defers_ = false;  // some of them may leave data in flight
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_CALLED_COLLECTIVES_H_
