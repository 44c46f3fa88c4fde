// The membership of a rank, as its endpoints share it: one for each lane of a process; and with it
// the calls that the rank has skipped. Each endpoint opens it to ask or to tell something, and sees
// between two openings what may be read at any time.
//
// Here for endpoints of one thread. With a thread for each, see runtime/guarded_membership.h.

#ifndef FFI_PROTOCOL_MEMBERSHIP_SHARED_MEMBERSHIP_H_
#define FFI_PROTOCOL_MEMBERSHIP_SHARED_MEMBERSHIP_H_

#include <cstdint>
#include <span>

#include "ffi/base/ids.h"
#include "ffi/base/time.h"
#include "ffi/protocol/membership/membership.h"
#include "ffi/protocol/membership/skipped_calls.h"
#include "ffi/protocol/membership/slices.h"

namespace optireduce {

// The facts that an endpoint reads with every datagram; see Membership.
struct MembershipFacts {
  Instant timeout = kNever;
  std::uint32_t changes = 0;
  bool stuck = false;
  bool in_use = false;  // some lane has a collective that goes on without silent ranks

  // Without a suspect, the time at which a rank was heard does not matter.
  bool asks() const { return timeout != kNever || stuck; }
};

class SharedMembership {
 public:
  SharedMembership(Rank self, std::uint16_t world_size, Duration peer_timeout, std::uint16_t lanes,
                   Slices slices = Slices(1), std::span<const Rank> absent = {})
      : membership_(self, world_size, peer_timeout, lanes, slices, absent),
        in_use_(!absent.empty()) {}
  virtual ~SharedMembership() = default;
  SharedMembership(const SharedMembership&) = delete;
  SharedMembership& operator=(const SharedMembership&) = delete;

  // Exclusive access to the membership for its lifetime: until the end of an expression such as
  // `shared.Open()->Retry(now)`. An endpoint holds one at a time.
  class Access {
   public:
    explicit Access(SharedMembership& shared) : shared_(shared) { shared_.Lock(); }
    ~Access() { shared_.Unlock(); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    Membership* operator->() { return &shared_.membership_; }
    SkippedCalls& skipped() { return shared_.skipped_; }
    void Use() { shared_.in_use_ = true; }

   private:
    SharedMembership& shared_;
  };
  Access Open() { return Access(*this); }

  // The facts of the last time that it was closed.
  virtual MembershipFacts facts() const { return Facts(); }

 protected:
  virtual void Lock() {}
  virtual void Unlock() {}
  // While it is open.
  MembershipFacts Facts() const {
    return {.timeout = membership_.timeout(),
            .changes = membership_.changes() + (in_use_ ? 1U : 0U),
            .stuck = membership_.stuck(),
            .in_use = in_use_};
  }

 private:
  Membership membership_;
  SkippedCalls skipped_;
  bool in_use_;
};

}  // namespace optireduce

#endif  // FFI_PROTOCOL_MEMBERSHIP_SHARED_MEMBERSHIP_H_
