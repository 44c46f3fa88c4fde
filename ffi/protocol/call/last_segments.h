// Whether the last segments of every peer have come in a stage, and when the last one came: the
// sign that a stage which drops late data may end early.

#ifndef FFI_PROTOCOL_CALL_LAST_SEGMENTS_H_
#define FFI_PROTOCOL_CALL_LAST_SEGMENTS_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"

namespace optireduce {

class LastSegments {
 public:
  explicit LastSegments(std::size_t members) : awaited_(members) {}

  // The member has segments for the stage, and its last ones have not come.
  void Await(MemberIndex member) {
    if (!awaited_[member.index()]) ++missing_;
    awaited_[member.index()] = true;
  }
  // They have come, or are not waited for.
  void See(MemberIndex member) {
    if (awaited_[member.index()]) --missing_;
    awaited_[member.index()] = false;
  }
  // Something has come.
  void Record(Instant now) { last_ = std::max(last_, now); }

  bool complete() const { return missing_ == 0; }
  Instant last() const { return last_; }

 private:
  std::vector<bool> awaited_;  // one for each member
  std::size_t missing_ = 0;
  Instant last_{};
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_CALL_LAST_SEGMENTS_H_
