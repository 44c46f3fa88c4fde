#include "ffi/protocol/collective/directory.h"

#include <ranges>
#include <utility>

#include "ffi/base/check.h"
#include "ffi/protocol/collective/policy_traits.h"
#include "ffi/protocol/wire/wire.h"

namespace optireduce {
Directory::Directory(const EndpointOptions& options)
    : rank_(options.rank),
      payload_bytes_max_(options.datagram_bytes_max - kOverheadBytes),
      shard_bytes_min_(options.shard_bytes_min) {}

Result<Collective*> Directory::FindOrAdd(const CollectiveSpec& spec) {
  const CollectiveId id = IdOf(spec);
  if (Collective* known = Find(id)) {
    if (SameCollective(known->spec, spec) && known->spec.name == spec.name) {
      if (known->spec.description.empty()) known->spec.description = spec.description;
      return known;
    }
    return InvalidArgument(
        "jax_optireduce: the collectives '" + known->spec.description + "' and '" +
        spec.description +
        "' have the same 32-bit identity by chance; give one of them another name=");
  }
  if (by_id_.size() >= kCollectivesMax) {
    return Status(StatusCode::kResourceExhausted,
                  "jax_optireduce: more than " + std::to_string(kCollectivesMax) +
                      " different collectives; the shapes of a step should not change each time");
  }
  const std::optional<MemberIndex> self = MemberOf(spec, rank_);
  OR_CHECK(self.has_value());
  auto collective =
      std::make_unique<Collective>(id, spec, *self, SegmentBytesMax(spec, payload_bytes_max_),
                                   OwnersOf(spec, id, shard_bytes_min_));
  collective->bucket_id = BucketOf(spec);
  collective->earlier_timing = FindEarlier(spec);
  if (OutlivesMembers(spec)) collective->presence = &presence_;
  Collective* learnt = collective.get();
  by_id_.emplace(id, std::move(collective));
  by_name_[spec.name].push_back(learnt);
  return learnt;
}

Timings Directory::FindTimings() const {
  Timings timings;
  for (const auto& [name, collectives] : by_name_) {
    for (const Collective* collective : std::views::reverse(collectives)) {
      if (!collective->timing) continue;
      const auto [known, added] =
          timings.try_emplace(IdWithoutMembers(collective->spec), *collective->timing);
      if (!added) known->second.ContinueFrom(*collective->timing);
    }
  }
  return timings;
}

void Directory::ContinueFrom(Timings earlier) {
  earlier_ = std::move(earlier);
  for (const auto& [id, collective] : by_id_) {
    collective->earlier_timing = FindEarlier(collective->spec);
    if (collective->timing && collective->earlier_timing != nullptr) {
      collective->timing->ContinueFrom(*collective->earlier_timing);
    }
  }
}

const CallTiming* Directory::FindEarlier(const CollectiveSpec& spec) const {
  const auto at = earlier_.find(IdWithoutMembers(spec));
  return at == earlier_.end() ? nullptr : &at->second;
}

Collective* Directory::Find(CollectiveId id) const {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : at->second.get();
}

const std::vector<Collective*>& Directory::Named(const std::string& name) const {
  const auto at = by_name_.find(name);
  OR_CHECK(at != by_name_.end());
  return at->second;
}

const Collective* Directory::FindAnnouncedOnly(Rank member, Instant limit) const {
  for (const auto& [id, collective] : by_id_) {
    const std::optional<MemberIndex> index = collective->MemberOf(member);
    if (!index || collective->submitted) continue;
    const auto& announced = collective->announced_at[index->index()];
    if (announced && announced->at <= limit) return collective.get();
  }
  return nullptr;
}

std::string Describe(const CollectiveSpec& spec, Sequence sequence) {
  return "call " + std::to_string(sequence.value()) + " of " +
         (spec.description.empty() ? spec.name : spec.description);
}

}  // namespace optireduce
