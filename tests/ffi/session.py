"""The endpoints of a session, driven by the test in virtual time."""

from collections.abc import Callable, Sequence

import numpy as np

import optireduce_testing as native
from jax_optireduce import _native

SECRET = bytes(range(32))


def sealer_of(source: int, session: int) -> native.Sealer:
    """Authenticates datagrams of a rank to rank 0, as its endpoint does."""
    version = _native.wire_version()
    label = f"jax_optireduce {version} session {session} lane 0 from {source} to 0"
    return native.Sealer(native.derive_key(SECRET, label))


# Datagrams at one instant. Chosen: more than any test has buckets for.
AT_ONCE_MAX = 100_000


class Session:
    """Ranks joined by a perfect network; tests may lose or keep datagrams.

    Attributes:
        ranks: the endpoints.
        now: virtual time, in seconds.
        done: ended calls of each rank, by token.
        wire: (receiver, datagram) under way.
        silent: ranks that neither send nor receive datagrams.
        held: (receiver, datagram) that `holds` has taken off the wire.
        buckets: the arrays of `call`, by rank and sequence.
    """

    def __init__(
        self,
        world_size: int,
        mode: str = "exact",
        *,
        elements: int = 300,
        wire_format: str = "float32",
        averages: bool = False,
        operation: str = "allreduce",
        clusters: Sequence[int] = (),
        spare: int = 0,
        **options,
    ):
        self.ranks = [
            native.Endpoint(rank, world_size, SECRET, **options)
            for rank in range(world_size)
        ]
        self.mode = mode
        self.elements = elements
        self.wire_format = wire_format
        self.averages = averages
        self.operation = operation
        self.quorum = (list(clusters), spare)
        self.now = 1.0
        self.done: list[dict[int, native.CallDone]] = [{} for _ in self.ranks]
        self.wire: list[tuple[int, bytes]] = []
        self.silent: set[int] = set()
        self.holds: Callable[[native.Header, int], bool] | None = None
        self.held: list[tuple[int, bytes]] = []
        self.buckets: dict[tuple[int, int], np.ndarray] = {}
        # An endpoint writes to an array until its call is over.
        self.kept: list[np.ndarray] = []

    def collective(
        self, elements: int, *, name="x", mode=None, fingerprint=1
    ) -> native.Collective:
        """A collective of all ranks."""
        return native.Collective(
            name,
            mode=mode or self.mode,
            members=list(range(len(self.ranks))),
            elements=elements,
            description=f"{name}: float32[{elements}]",
            fingerprint=fingerprint,
            wire_format=self.wire_format,
            operation=self.operation,
        )

    def submit(
        self, rank, array, *, sequence=0, token=None, drain=False, **collective
    ) -> str:
        """Calls a collective on one rank; returns the reason of a refusal, or ""."""
        self.kept.append(array)
        return self.ranks[rank].submit(
            self.now,
            self.collective(array.size, **collective),
            array,
            sequence,
            sequence if token is None else token,
            drain,
            self.averages,
            *self.quorum,
        )

    def call(self, rank, sequence=0, *, drain=False, values=None):
        """Calls on one rank, with a bucket of its own."""
        array = np.full(self.elements, 1 + rank + 10 * sequence, np.float32)
        if values is not None:
            array = values.copy()
        if drain:
            array[:] = 0
        self.buckets[rank, sequence] = array
        assert self.submit(rank, array, sequence=sequence, drain=drain) == ""

    def grow_windows(self):
        """Makes one large call, so that the windows allow a burst."""
        for rank in range(len(self.ranks)):
            array = np.zeros(200_000, np.float32)
            assert self.submit(rank, array, name="large", fingerprint=99) == ""
        self.run(1.0)
        for done in self.done:
            assert done.pop(0).error == ""

    def give_up(self, rank, elements, *, sequence=0, why="interrupted"):
        """Ends a call that one rank has not made."""
        collective = self.collective(elements)
        self.ranks[rank].give_up(self.now, collective, sequence, why)

    def collect(self):
        """Takes the pending datagrams and events of the ranks."""
        for rank, endpoint in enumerate(self.ranks):
            while (transmit := endpoint.poll_transmit(self.now, 8)) is not None:
                to, datagrams = transmit
                for datagram in datagrams if rank not in self.silent else ():
                    held = self.holds and self.holds(native.parse_header(datagram), to)
                    (self.held if held else self.wire).append((to, datagram))
            while (done := endpoint.poll_event()) is not None:
                assert done.token not in self.done[rank], "a call ended twice"
                self.done[rank][done.token] = done

    def release(self):
        """Delivers the held datagrams next, and stops holding."""
        self.wire = self.held + self.wire
        self.held, self.holds = [], None

    def deliver_next(self):
        """Delivers the oldest datagram."""
        to, datagram = self.wire.pop(0)
        if to not in self.silent:
            self.ranks[to].handle_datagram(self.now, datagram)

    def run_until_rank_0_is_done(self):
        """Delivers datagrams one by one; the remaining ones stay in `wire`."""
        while not self.done[0]:
            self.collect()
            if self.wire:
                self.deliver_next()

    def until(self, time: float):
        """Delivers datagrams and expires timers until a time."""
        at_once = 0
        while True:
            self.collect()
            if self.wire:
                at_once += 1
                assert at_once < AT_ONCE_MAX, "the ranks answer each other without end"
                self.deliver_next()
                continue
            awake = [e for r, e in enumerate(self.ranks) if r not in self.silent]
            at = min(endpoint.poll_timeout() for endpoint in awake)
            if at > time:
                self.now = time
                return
            at_once = at_once if at <= self.now else 0
            self.now = max(self.now, at)
            for endpoint in awake:
                endpoint.handle_timeout(self.now)

    def run(self, seconds: float = 1.0):
        """Does the same for a duration."""
        self.until(self.now + seconds)

    def expired(self, rank) -> int:
        """Stages of a rank that were ended by their deadlines."""
        return self.ranks[rank].counters()["stages_expired"]


def rejected(endpoint) -> dict[str, int]:
    """Rejections of an endpoint, by reason."""
    return {
        k: v for k, v in endpoint.counters().items() if k.startswith("rejected") and v
    }


class Recorded(Session):
    """Keeps the headers of sent datagrams.

    Attributes:
        sent: of each `collect`, first the datagrams that arrive, then the held ones.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.sent: list[native.Header] = []

    def collect(self):
        arriving, holding = len(self.wire), len(self.held)
        super().collect()
        new = self.wire[arriving:] + self.held[holding:]
        self.sent += [native.parse_header(datagram) for _, datagram in new]

    def of(self, rank, kind, sequence) -> list[native.Header]:
        """Headers that this rank has sent in a call."""
        wanted = (rank, kind, sequence)
        return [h for h in self.sent if (h.source, h.kind, h.sequence) == wanted]

    def hold(self, kind, source=None, *, to=None):
        """Holds datagrams of a kind: from one rank, to one, or from and to any."""
        self.holds = lambda header, receiver: (
            header.kind == kind
            and source in (None, header.source)
            and to in (None, receiver)
        )

    def lose(self):
        """Drops the held datagrams, and stops holding."""
        self.held, self.holds = [], None
