// Ranks that are behind where late data is dropped: what all others are past is passed.

#include <algorithm>
#include <vector>

#include "ffi/protocol/endpoint_impl.h"

namespace optireduce {
void Endpoint::Impl::NoteAttendance(Instant now, Collective& collective, MemberIndex from,
                                    Sequence call) {
  if (!Drops(collective.spec) || !collective.attendance.Note(from, call)) return;
  std::vector<CallId> passed;
  calls_.ForEach(collective.id, [&](CallId open, OpenCall& active) {
    const Exchange& exchange = active.exchange;
    const bool ends = open.sequence < call && exchange.submitted() && !exchange.finished();
    if (ends && PassIfOthersHave(now, collective, active)) passed.push_back(open);
  });
  for (const CallId open : passed) FinishIfComplete(now, calls_.At(open));
}

bool Endpoint::Impl::PassIfOthersHave(Instant now, const Collective& collective, OpenCall& active) {
  if (!Drops(collective.spec)) return false;
  const Sequence call = active.exchange.call().sequence;
  bool passed = false;
  for (std::uint16_t m = 0; m < collective.layout.members(); ++m) {
    const MemberIndex member(m);
    if (member == collective.self || peers_[collective.RankOf(member).index()]->gone()) continue;
    if (collective.attendance.Absent(member)) continue;
    if (!collective.attendance.Past(member, call)) return false;
    passed = true;
  }
  if (passed) active.exchange.Pass(now);
  return passed;
}

void Endpoint::Impl::TellPosition(const Collective& collective, CallId call) {
  for (const Rank member : collective.spec.members) {
    if (member == options_.rank || peer(member).gone() || !peer(member).control.empty()) continue;
    peer(member).control.push_back(
        {.kind = DatagramKind::kAnnouncement, .flags = kFlagWaiting, .call = call, .segment = {}});
  }
}

}  // namespace optireduce
