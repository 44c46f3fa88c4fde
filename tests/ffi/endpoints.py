"""Endpoints driven by hand in virtual time."""

import numpy as np

from jax_optireduce import _testing

SECRET = bytes(range(32))
# Datagrams while no time passes. Chosen: more than any test has buckets for.
AT_ONCE_MAX = 100_000
# Of the calls of `Modes`, for both stages.
DEADLINE_S = 0.1
JUST_S = 1e-6


class Net:
    """Ranks joined by a perfect network; tests may lose or keep datagrams."""

    def __init__(self, world_size: int, **options):
        self.ranks = [
            _testing.Endpoint(rank, world_size, SECRET, **options)
            for rank in range(world_size)
        ]
        self.now = 1.0
        self.done: list[dict[int, tuple]] = [{} for _ in self.ranks]
        self.wire: list[tuple[int, bytes]] = []
        self.silent: set[int] = set()
        self.arrays: list = []

    def submit(
        self,
        rank,
        array,
        *,
        name="x",
        fingerprint=1,
        sequence=0,
        drop=False,
        carry=False,
        token=0,
    ):
        self.arrays.append(array)  # An endpoint writes to it until the call is over.
        return self.ranks[rank].submit(
            self.now,
            name,
            f"{name}: float32[{array.size}]",
            fingerprint,
            drop,
            0.1,
            list(range(len(self.ranks))),
            sequence,
            token,
            array,
            carry,
        )

    def collect(self):
        """Takes what the ranks have to send and to tell."""
        for rank, endpoint in enumerate(self.ranks):
            while (transmit := endpoint.poll_transmit(self.now, 8)) is not None:
                to, datagrams = transmit
                if rank not in self.silent:
                    self.wire += [(to, datagram) for datagram in datagrams]
            while (event := endpoint.poll_event()) is not None:
                assert event[0] not in self.done[rank], "a call ended twice"
                self.done[rank][event[0]] = event[1:]

    def run_until_rank_0_is_done(self):
        """Lets datagrams arrive one by one; what is left stays in `wire`."""
        while not self.done[0]:
            self.collect()
            if self.wire:
                to, datagram = self.wire.pop(0)
                self.ranks[to].handle_datagram(self.now, datagram)

    def run(self, seconds: float = 1.0):
        end = self.now + seconds
        at_once = 0
        while True:
            self.collect()
            if self.wire:
                at_once += 1
                assert at_once < AT_ONCE_MAX, "the ranks answer each other without end"
                to, datagram = self.wire.pop(0)
                if to not in self.silent:
                    self.ranks[to].handle_datagram(self.now, datagram)
                continue
            at = min(
                e.poll_timeout()
                for r, e in enumerate(self.ranks)
                if r not in self.silent
            )
            if at > end:
                self.now = end
                return
            at_once = at_once if at <= self.now else 0
            self.now = max(self.now, at)
            for rank, endpoint in enumerate(self.ranks):
                if rank not in self.silent:
                    endpoint.handle_timeout(self.now)


class Modes(Net):
    """Ranks that make calls of one mode, each of a bucket of its own."""

    def __init__(
        self,
        world_size,
        mode="bounded",
        elements=300,
        wire_format="float32",
        **options,
    ):
        super().__init__(world_size, **options)
        self.wire_format = wire_format
        self.mode = mode
        self.elements = elements
        self.buckets = {}

    def call(self, rank, sequence=0, *, drain=False, values=None):
        array = np.full(self.elements, 1 + rank + 10 * sequence, np.float32)
        if values is not None:
            array = values.copy()
        if drain:
            array[:] = 0
        self.buckets[rank, sequence] = array
        members = list(range(len(self.ranks)))
        token = sequence
        refused = self.ranks[rank].submit_in(
            *(self.now, self.mode, DEADLINE_S, members, sequence, token, array),
            drain=drain,
            wire_format=self.wire_format,
        )
        assert refused == ""

    def until(self, time):
        self.run(time - self.now)

    def expired(self, rank):
        return self.ranks[rank].counters()["stages_expired"]


class Recorded(Modes):
    """Keeps the headers of what was sent, and holds back what it is asked to."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.sent: list[tuple] = []
        # What is held back: (kind, sender, receiver), in part.
        self.holds: tuple | None = None
        self.held: list[tuple[int, bytes]] = []

    def collect(self):
        before = len(self.wire)
        super().collect()
        new, self.wire = self.wire[before:], self.wire[:before]
        for to, datagram in new:
            header = _testing.parse_header(datagram)
            self.sent.append((to, *header))
            of_it = (header[0], header[2], to)
            held = self.holds is not None and all(
                wanted in (None, is_)
                for wanted, is_ in zip(self.holds, of_it, strict=True)
            )
            (self.held if held else self.wire).append((to, datagram))

    def release(self, *, lose=False):
        self.holds = None
        self.wire += [] if lose else self.held
        self.held = []

    def of(self, rank, kind, sequence) -> list[tuple]:
        """What this rank has sent of a call: receiver, then the header."""
        return [h for h in self.sent if (h[3], h[1], h[6]) == (rank, kind, sequence)]


def rejected(endpoint) -> dict[str, int]:
    return {
        k: v for k, v in endpoint.counters().items() if k.startswith("rejected") and v
    }
