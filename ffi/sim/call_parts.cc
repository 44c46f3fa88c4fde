#include "ffi/sim/call_parts.h"

#include "ffi/base/check.h"

namespace optireduce {

std::vector<BucketPart> CallParts::Cut(const Submission& submission) {
  std::vector<BucketPart> parts = CutBucket(submission, lanes_, kSimCutBytesMin);
  calls_[submission.token].left = parts.size();
  for (BucketPart& part : parts) {
    part.submission.token = submission.token * lanes_ + part.lane;
    elements_[part.submission.token] = part.submission.spec.elements;
  }
  return parts;
}

std::optional<CallDone> CallParts::End(const CallDone& part) {
  const auto call = calls_.find(CallOf(part.token));
  const auto elements = elements_.find(part.token);
  OR_CHECK(call != calls_.end() && elements != elements_.end());
  UnderWay& under_way = call->second;
  under_way.outcomes.Add(part.status, part.stats, elements->second);
  elements_.erase(elements);
  if (--under_way.left > 0) return std::nullopt;
  CallDone done{.token = call->first,
                .status = under_way.outcomes.status(),
                .stats = under_way.outcomes.stats()};
  calls_.erase(call);
  return done;
}

}  // namespace optireduce
