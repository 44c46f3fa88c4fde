"""Membership: agreed on over a network that loses, repeats, reorders and parts.

Times are in seconds of virtual time; a peer is silent after one of them.
"""

import heapq
import itertools
import random
from dataclasses import dataclass, field

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

STATUS, PREPARE, VOTE, PROPOSAL, ACCEPTED, DECISION = range(1, 7)
TIMEOUT = 1.0
# Duration of the faults, and the limit of an agreement about them.
FAULTS = 8.0
SETTLED = FAULTS + 30.0
COLLECTIVES = 3


@dataclass
class Network:
    """Joins one `Membership` for each rank; the latency of messages is random."""

    ranks: int
    seed: int = 0
    loss: float = 0.0
    repeats: float = 0.0
    calls: int = COLLECTIVES
    lanes: int = 1
    per_slice: int = 1
    now: float = 0.0
    dead: set = field(default_factory=set)
    asleep: set = field(default_factory=set)
    cut: set = field(default_factory=set)  # (from, to)
    mute: set = field(default_factory=set)  # (rank, lane)
    decided: dict = field(default_factory=dict)  # view -> (members, firsts)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.members = [
            native.Membership(r, self.ranks, TIMEOUT, self.lanes, self.per_slice)
            for r in range(self.ranks)
        ]
        self.heard = [
            [[0.0] * self.ranks for _ in range(self.lanes)] for _ in range(self.ranks)
        ]
        self.called = [{} for _ in range(self.ranks)]
        self.newest = [{} for _ in range(self.ranks)]  # the newest begun calls
        self.parts = [[] for _ in range(self.ranks)]  # (lane, collective, sequence)
        self.view = [0] * self.ranks
        self.decided[0] = (list(range(self.ranks)), [])
        self.messages = 0
        self.used = {}  # call -> rank -> its members there
        self.events = []
        self.order = itertools.count()
        self.waiting = [[] for _ in range(self.ranks)]  # arrivals while it sleeps
        for r in range(self.ranks):
            self.at(self.random.uniform(0, 0.1), self.live, r)
            self.at(0.0, self.wake, r)

    def at(self, time, action, *arguments):
        heapq.heappush(self.events, (time, next(self.order), action, arguments))

    def run(self, until):
        while self.events and self.events[0][0] <= until:
            self.now, _, action, arguments = heapq.heappop(self.events)
            action(*arguments)
        self.now = until

    def runs(self, rank):
        return rank not in self.dead and rank not in self.asleep

    # ---- Activity of a rank.

    def live(self, rank):
        """Traffic, the monitoring of the peers, and the program, at intervals."""
        if rank in self.dead:
            return
        self.at(self.now + self.random.uniform(0.2, 0.3), self.live, rank)
        if rank in self.asleep:
            return
        membership = self.members[rank]
        if membership.removed:
            return
        for peer in membership.view[1]:
            if peer == rank:
                continue
            for lane in range(self.lanes):
                self.send(rank, peer, None, lane)
                if self.now - self.heard[rank][lane][peer] >= TIMEOUT:
                    membership.suspect(self.now, lane, peer)
        if self.calls and not self.parts[rank]:
            collective = self.random.randrange(self.calls)
            sequence = self.called[rank].get(collective, -1) + self.random.choice(
                [1, 1, 3]
            )
            self.called[rank][collective] = sequence
            self.parts[rank] = [(x, collective, sequence) for x in range(self.lanes)]
            self.random.shuffle(self.parts[rank])
        # Some parts of a call begin immediately, others later, as the lanes reach them.
        for part in list(self.parts[rank]):
            if self.random.random() < 0.6:
                self.begin(rank, *part)
        self.flush(rank)

    def begin(self, rank, lane, collective, sequence):
        membership = self.members[rank]
        number = membership.view[0]
        if not membership.try_start(number, collective, sequence):
            assert membership.frozen
            return
        assert not membership.try_start(number + 1, collective, sequence)
        self.parts[rank].remove((lane, collective, sequence))
        self.newest[rank][collective] = sequence
        used = membership.members_of(collective, sequence)
        assert rank in used
        # All its parts, of all ranks: see check_settled().
        known = self.used.setdefault((collective, sequence), {})
        assert known.setdefault(rank, used) == used, "parts have other members"

    def wake(self, rank):
        """Handles due timers; repeats as often as a timer would."""
        if not self.runs(rank):
            return
        at = self.members[rank].timeout()
        if at is not None and at <= self.now:
            self.members[rank].handle_timeout(self.now)
            self.flush(rank)

    def flush(self, rank):
        membership = self.members[rank]
        for lane in range(self.lanes):
            while (outgoing := membership.poll(self.now, lane)) is not None:
                to, message = outgoing
                assert len(message) <= native.MEMBERSHIP_BYTES_MAX
                self.messages += 1
                self.send(rank, to, message, lane)
        if (at := membership.timeout()) is not None:
            self.at(max(at, self.now), self.wake, rank)
        self.check(rank)

    def send(self, sender, to, message, lane=0):
        if (sender, to) in self.cut or self.random.random() < self.loss:
            return
        if not self.mute.isdisjoint({(sender, lane), (to, lane)}):
            return
        for _ in range(1 + (self.random.random() < self.repeats)):
            delay = self.random.choice([0.001, 0.001, 0.002, 0.03])
            self.at(self.now + delay, self.deliver, sender, to, message, lane)

    def deliver(self, sender, to, message, lane):
        if to in self.dead:
            return
        if to in self.asleep:
            self.waiting[to].append((sender, message, lane))
            return
        self.heard[to][lane][sender] = self.now
        self.members[to].heard(self.now, lane, sender)
        if message is not None:
            assert self.members[to].handle(self.now, lane, sender, message)
        self.flush(to)

    # ---- Faults.

    def die(self, rank):
        self.dead.add(rank)

    def sleep(self, rank, duration):
        if self.runs(rank):
            self.asleep.add(rank)
            self.at(self.now + duration, self.thaw, rank)

    def thaw(self, rank):
        self.asleep.discard(rank)
        # Its monitor may run before the datagrams that arrived meanwhile are read.
        if rank not in self.dead and self.random.random() < 0.5:
            self.live(rank)
        waiting, self.waiting[rank] = self.waiting[rank], []
        for sender, message, lane in waiting:
            self.deliver(sender, rank, message, lane)
        self.wake(rank)

    def part(self, one_side, duration):
        links = {
            (a, b)
            for a in range(self.ranks)
            for b in range(self.ranks)
            if (a in one_side) != (b in one_side)
        }
        self.break_links(links, duration)

    def mute_lane(self, rank, lane, duration):
        """Blocks one lane of the rank; the others work."""
        lane %= self.lanes
        self.mute.add((rank, lane))
        self.at(self.now + duration, self.mute.discard, (rank, lane))

    def break_links(self, links, duration):
        self.cut |= links
        self.at(self.now + duration, self.cut.difference_update, links)

    # ---- Invariants.

    def check(self, rank):
        number, members, firsts = self.members[rank].view
        known = self.decided.setdefault(number, (members, firsts))
        assert known == (members, firsts), f"view {number} was decided twice"
        if number == self.view[rank]:
            return
        assert number > self.view[rank]
        self.view[rank] = number
        assert members == self.whole(members), "the view has a part of a slice"
        if self.members[rank].removed:
            return
        assert len(members) * 2 > len(self.decided[number - 1][0])
        for collective, sequence in self.newest[rank].items():
            following = self.members[rank].members_of(collective, sequence + 100)
            assert following == members
            if members != self.decided[number - 1][0]:
                assert sequence < self.members[rank].first_of(collective)

    def whole(self, ranks):
        """Returns the ranks whose slice is among them as a whole."""
        slices = [
            range(first, first + self.per_slice)
            for first in range(0, self.ranks, self.per_slice)
        ]
        return [r for mates in slices if set(mates) <= set(ranks) for r in mates]

    def check_settled(self):
        alive = [r for r in range(self.ranks) if r not in self.dead]
        # A view known only to dead ranks does not count.
        newest = max((self.view[r] for r in alive), default=0)
        members = self.decided[newest][0]
        left = [r for r in members if r in alive]
        for rank in alive:
            if rank not in members:
                assert self.members[rank].removed
                assert not self.members[rank].stuck
        whole = self.whole(left)
        for rank in left:
            membership = self.members[rank]
            assert membership.view[0] == newest
            if len(whole) * 2 > len(members):
                assert members == whole
                assert not membership.frozen
                assert not membership.stuck
                assert membership.timeout() is None
            else:
                assert membership.stuck
                assert membership.connected(self.now) == len(whole)
        # Calls that removed ranks have begun since do not concern the others.
        for used in self.used.values():
            agreed = [used[rank] for rank in left if rank in used]
            assert all(members == agreed[0] for members in agreed)


def settled(network):
    network.run(SETTLED - 5 * TIMEOUT)
    # Otherwise a rank could be suspected by chance at the end.
    network.loss = 0.0
    network.run(SETTLED)
    network.check_settled()
    return network


faults = st.one_of(
    st.tuples(st.just("die"), st.integers(0, 6)),
    st.tuples(
        st.just("mute_lane"), st.integers(0, 6), st.integers(0, 2), st.floats(0.1, 6.0)
    ),
    st.tuples(st.just("sleep"), st.integers(0, 6), st.floats(0.1, 6.0)),
    st.tuples(
        st.just("part"), st.sets(st.integers(0, 6), max_size=3), st.floats(0.1, 6.0)
    ),
    st.tuples(
        st.just("break_links"),
        st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=4),
        st.floats(0.1, 6.0),
    ),
)


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    st.integers(1, 7),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0, COLLECTIVES, 100]),
    st.integers(1, 3),
    st.lists(st.tuples(st.floats(0, FAULTS), faults), max_size=6),
)
def test_a_majority_agrees_on_every_view_and_a_minority_on_none(
    ranks, seed, loss, repeats, calls, lanes, script
):
    network = Network(ranks, seed, loss, repeats, calls, lanes)
    for at, (name, *arguments) in script:
        if isinstance(arguments[0], int):
            arguments[0] %= ranks
        network.at(at, getattr(network, name), *arguments)
    # Ranks that are still cut off or asleep by then return.
    settled(network)


@hypothesis.settings(max_examples=150)
@hypothesis.given(
    st.integers(1, 4),
    st.integers(2, 3),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 2),
    st.lists(st.tuples(st.floats(0, FAULTS), faults), max_size=5),
)
def test_a_majority_of_slices_agrees_on_views_of_whole_slices(
    slices, per_slice, seed, loss, lanes, script
):
    ranks = slices * per_slice
    network = Network(ranks, seed, loss, lanes=lanes, per_slice=per_slice)
    for at, (name, *arguments) in script:
        if isinstance(arguments[0], int):
            arguments[0] %= ranks
        network.at(at, getattr(network, name), *arguments)
    settled(network)


@pytest.mark.parametrize("dead", range(6))
def test_a_dead_rank_takes_its_slice_with_it_which_learns_its_name(dead):
    network = Network(6, seed=1, per_slice=2)
    network.run(2.0)
    network.die(dead)
    network.run(2.0 + 4 * TIMEOUT)
    partner = dead ^ 1
    members, firsts = network.decided[1]
    assert members == [r for r in range(6) if r not in (dead, partner)]
    assert all(network.members[r].view == (1, members, firsts) for r in members)
    assert network.members[partner].removed
    assert network.members[partner].lost_with == [dead]


def test_a_rank_that_goes_with_its_slice_does_not_lead_the_agreement():
    for seed in range(5):
        network = Network(6, seed=seed, per_slice=2)
        network.run(2.0)
        network.die(0)
        leaders = []
        while not leaders:
            network.run(network.now + 0.0005)
            leaders = [r for r in range(1, 6) if network.members[r].frozen]
            assert network.now < 2.0 + 3 * TIMEOUT
        # Rank 1 is alive, and the lowest.
        assert leaders == [2]


def test_of_three_slices_two_with_a_dead_rank_leave_no_majority():
    network = Network(6, seed=1, per_slice=2)
    network.run(2.0)
    network.die(1)
    network.die(2)
    network.run(2.0 + 6 * TIMEOUT)
    # Four of six ranks, but one of three slices.
    assert network.decided.keys() == {0}
    for rank in (0, 3, 4, 5):
        assert network.members[rank].stuck
        assert network.members[rank].connected(network.now) == 2


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("ranks", [3, 4, 8, 16])
def test_a_dead_rank_is_removed_at_one_call_of_each_collective(ranks, loss):
    network = Network(ranks, seed=1, loss=loss)
    network.run(2.0)
    network.die(ranks - 1)
    network.run(2.0 + 3 * TIMEOUT)
    members, firsts = network.decided[1]
    assert members == list(range(ranks - 1))
    for rank in members:
        assert network.members[rank].view == (1, members, firsts)
    assert dict(firsts).keys() == set(range(COLLECTIVES))
    for collective, first in firsts:
        before = network.members[0].members_of(collective, first - 1)
        assert before == list(range(ranks))
        assert network.members[0].members_of(collective, first) == members
    # A status for each pair in every interval, and the other messages: no storm.
    assert network.messages < 3 * TIMEOUT / 0.05 * ranks * ranks


def test_no_call_follows_the_last_number():
    network = Network(3, calls=0)
    for membership in network.members:
        assert membership.try_start(0, COLLECTIVES, 2**32 - 1)
    network.die(2)
    network.run(3 * TIMEOUT)
    assert (COLLECTIVES, 2**32 - 1) in network.decided[1][1]


def test_without_faults_nothing_is_sent_and_nothing_decided():
    network = Network(4)
    network.run(5.0)
    assert network.decided.keys() == {0}
    assert all(membership.timeout() is None for membership in network.members)


def test_a_suspect_that_is_heard_in_time_stays():
    network = Network(3)
    network.at(1.0, network.members[0].suspect, 1.0, 0, 2)
    network.run(1.0)
    network.flush(0)
    settled(network)
    assert network.decided[max(network.decided)][0] == [0, 1, 2]


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("lane", [0, 1])
def test_a_rank_with_one_dead_lane_is_removed_from_all_of_them(rank, lane):
    for seed in range(10):
        network = Network(4, seed=seed, lanes=2)
        network.at(2.0, network.mute_lane, rank, lane, 100.0)
        network.run(2.0 + 3 * TIMEOUT)
        others = [r for r in range(4) if r != rank]
        assert network.decided[1][0] == others
        assert [r for r in range(4) if network.members[r].removed] == [rank]
        settled(network)


def test_a_lane_that_is_heard_does_not_excuse_another_one():
    membership = native.Membership(0, 3, TIMEOUT, 2)
    membership.suspect(0.0, 1, 2)
    membership.heard(0.0, 0, 2)
    assert membership.connected(0.0) == 2
    membership.heard(0.0, 1, 2)
    assert membership.connected(0.0) == 3


def test_a_part_begins_after_the_vote_if_another_part_of_its_call_had_begun():
    membership = native.Membership(1, 3, TIMEOUT, 2)
    assert membership.try_start(0, 7, 4)
    prepare = native.encode_membership(
        native.MembershipMessage(kind=PREPARE, ballot=(1, 0))
    )
    before = membership.changes
    assert membership.handle(0.0, 0, 0, prepare)
    assert membership.changes == before
    assert membership.frozen
    assert membership.try_start(0, 7, 4)
    assert not membership.try_start(0, 7, 5)
    assert not membership.try_start(0, 8, 0)


def test_what_concerns_all_lanes_is_sent_on_all_of_them():
    membership = native.Membership(0, 3, TIMEOUT, 3)
    before = membership.changes
    membership.suspect(0.0, 1, 2)
    membership.handle_timeout(0.0)
    assert membership.changes > before
    for lane in range(3):
        to = {membership.poll(0.0, lane)[0] for _ in range(2)}
        assert to == {1, 2}
        assert membership.poll(0.0, lane) is None


AFTER = [0.0, 0.001, 0.0015, 0.002, 0.003, 0.0045, 0.006, 0.03]


def until_rank_0_coordinates(seed):
    network = Network(5, seed=seed)
    network.run(2.0)
    network.die(4)
    while not network.members[0].frozen:
        network.run(network.now + 0.0005)
        assert network.now < 2.0 + 3 * TIMEOUT
    return network


@pytest.mark.parametrize("after", AFTER)
def test_the_coordinator_may_die_at_any_moment(after):
    for seed in range(10):
        network = until_rank_0_coordinates(seed)
        network.at(network.now + after, network.die, 0)
        settled(network)
        assert network.decided[max(network.decided)][0] == [1, 2, 3]


@pytest.mark.parametrize("after", AFTER)
def test_the_coordinator_may_be_cut_off_at_any_moment(after):
    for seed in range(10):
        network = until_rank_0_coordinates(seed)
        network.at(network.now + after, network.part, {0}, 6.0)
        settled(network)
        assert network.decided[max(network.decided)][0] == [1, 2, 3]
        assert network.members[0].removed


def test_several_may_die_at_once():
    network = Network(7)
    network.run(2.0)
    for rank in (0, 3, 6):
        network.die(rank)
    settled(network)
    assert network.decided[max(network.decided)][0] == [1, 2, 4, 5]


def test_half_of_the_ranks_decide_nothing():
    network = Network(4)
    network.run(2.0)
    network.die(1)
    network.die(2)
    settled(network)
    assert network.decided.keys() == {0}
    assert network.members[0].stuck
    assert network.members[3].stuck


def test_both_halves_of_a_cut_wait_for_each_other():
    network = Network(4)
    network.at(2.0, network.part, {0, 1}, 10.0)
    network.run(11.0)
    assert all(membership.stuck for membership in network.members)
    settled(network)
    assert network.decided[max(network.decided)][0] == [0, 1, 2, 3]


def test_a_rank_that_slept_learns_that_it_was_removed():
    network = Network(4)
    network.at(2.0, network.sleep, 1, 8.0)
    network.run(9.0)
    assert network.decided[1][0] == [0, 2, 3]
    assert not network.members[1].removed
    network.run(10.1)
    assert network.members[1].removed
    settled(network)


def test_of_two_that_do_not_reach_each_other_one_goes():
    network = Network(4)
    network.at(2.0, network.break_links, {(0, 3), (3, 0)}, 100.0)
    settled(network)
    assert network.decided[max(network.decided)][0] == [0, 1, 2]


def test_a_rank_that_is_not_heard_goes():
    network = Network(4)
    # It hears the others, and they hear it, except for one of them.
    network.at(2.0, network.break_links, {(0, 3)}, 100.0)
    settled(network)
    members = network.decided[max(network.decided)][0]
    assert len(members) == 3
    assert not {0, 3} <= set(members)


def test_the_one_in_the_middle_stays_when_the_lowest_reaches_only_it():
    network = Network(5)
    links = {(0, r) for r in (2, 3, 4)} | {(r, 0) for r in (2, 3, 4)}
    network.at(2.0, network.break_links, links, 100.0)
    settled(network)
    assert network.decided[max(network.decided)][0] == [1, 2, 3, 4]


# ---- Messages.

ballots = st.tuples(st.integers(1, 2**32 - 2), st.integers(0, 1023))
calls = st.dictionaries(
    st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), max_size=43
).map(lambda entries: sorted(entries.items()))
ranks_of_a_session = st.sets(st.integers(0, 1023), min_size=1).map(sorted)


@hypothesis.given(ballots, calls, ranks_of_a_session, st.integers(1, 2**32 - 1))
def test_messages_survive_the_way(ballot, entries, ranks, view):
    message = native.MembershipMessage
    for sent in [
        message(kind=STATUS, asks=True, view=view, ballot=ballot, ranks=ranks),
        message(kind=PREPARE, view=view, ballot=ballot),
        message(
            kind=VOTE,
            view=view,
            ballot=ballot,
            part=1,
            parts=3,
            ranks=ranks,
            calls=entries,
        ),
        message(
            kind=VOTE,
            view=view,
            ballot=ballot,
            accepted=(1, 0),
            part=2,
            parts=3,
            ranks=ranks,
            calls=entries,
        ),
        message(kind=PROPOSAL, view=view, ballot=ballot, ranks=ranks, calls=entries),
        message(kind=ACCEPTED, view=view, ballot=ballot),
        message(kind=DECISION, view=view, parts=1525, ranks=ranks, calls=entries),
    ]:
        encoded = native.encode_membership(sent)
        assert len(encoded) <= native.MEMBERSHIP_BYTES_MAX
        assert native.parse_membership(encoded, 1024) == sent
        assert native.parse_membership(encoded, ranks[-1]) is None or not sent.ranks
        assert native.parse_membership(encoded + b"\0", 1024) is None
        assert native.parse_membership(encoded[:20], 1024) is None


@hypothesis.given(st.binary(max_size=600))
def test_foreign_bytes_are_refused_or_stay_what_they_are(data):
    message = native.parse_membership(data, 16)
    if message is not None:
        again = native.parse_membership(native.encode_membership(message), 16)
        assert again == message


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    st.lists(
        st.builds(
            native.MembershipMessage,
            kind=st.integers(1, 6),
            asks=st.booleans(),
            view=st.integers(0, 3),
            ballot=st.tuples(st.integers(0, 3), st.integers(0, 4)),
            accepted=st.tuples(st.integers(0, 3), st.integers(0, 4)),
            part=st.integers(0, 2),
            parts=st.integers(1, 3),
            ranks=st.sets(st.integers(0, 4)).map(sorted),
            calls=st.dictionaries(st.integers(0, 3), st.integers(0, 3)).map(
                lambda entries: sorted(entries.items())
            ),
        ),
        max_size=30,
    )
)
def test_no_order_of_messages_breaks_a_rank(messages):
    membership = native.Membership(0, 4, TIMEOUT)
    now = 0.0
    for message in messages:
        now += 0.07
        membership.handle(
            now, 0, 1 + len(messages) % 3, native.encode_membership(message)
        )
        membership.handle_timeout(now)
        while membership.poll(now, 0) is not None:
            pass
    number, members, _ = membership.view
    assert (number == 0) == (members == [0, 1, 2, 3]) or number > 0


def test_a_message_of_oneself_or_of_nobody_is_refused():
    membership = native.Membership(0, 4, TIMEOUT)
    status = native.encode_membership(native.MembershipMessage(kind=STATUS, ranks=[2]))
    assert not membership.handle(0.0, 0, 0, status)
    assert not membership.handle(0.0, 0, 4, status)
    assert membership.handle(0.0, 0, 1, status)
