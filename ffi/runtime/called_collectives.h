// The collectives that this process has called, for checks of its drains. A drain that matches none
// of them would return no data, and data in flight would be lost.

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
  // Records a call that is not a drain. Calls of a program that differ only in their source
  // location have one key and one fingerprint.
  void Record(const std::string& key, const CollectiveSpec& spec);

  // Ok if the drain matches a call, or if no call can have left data for it. Otherwise an error
  // that names the nearest calls. `if_any`: a missing call with this key is not an error.
  Status Check(const std::string& key, const CollectiveSpec& drain, bool if_any) const;

 private:
  // Drainable collectives with a similar key, or the first few if there are none.
  std::string Nearest(const std::string& key) const;

  std::map<std::string, std::vector<CollectiveSpec>> calls_;  // the collectives of each key
  std::size_t noted_ = 0;
  bool defers_ = false;  // some of them may leave data in flight
};

}  // namespace optireduce

#endif  // FFI_RUNTIME_CALLED_COLLECTIVES_H_
