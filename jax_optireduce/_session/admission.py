"""Ranks that come back: the next session, which has them, opens beside the running one.

The processes agree through the coordination service, see `agreement`. A thread of each
member does all but the switch. The program takes part in `admit`: at the call of the
decision it drains, its calls find the next session from then on, and one member sends
its state. All members wait for that.
"""

import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax

from jax_optireduce._errors import RendezvousError, UsageError
from jax_optireduce._jax import coordination, programs
from jax_optireduce._session import agreement, plans, rendezvous, state_transfer
from jax_optireduce._session.options import Internal, Options

_log = logging.getLogger("jax_optireduce")

_T = TypeVar("_T")

# Period in which a member asks for plans and wishes, in seconds, and the number of
# ranks beyond which it grows in proportion. Chosen: a part of the start of a process,
# and about a hundred requests per second of all ranks together.
_POLL_S = 0.2
_POLL_RANKS = 16

# Longest wait for the thread at the end of a session, in seconds. Chosen: its waits end
# with the session, most of them in tenths of a second.
_END_S = 2.0


class Session(Protocol):
    """The interface of the communicator of this process."""

    place: int
    rank: int
    world_size: int
    options: Options
    internal: Internal

    def newest_call(self) -> int: ...
    def silent_ranks(self) -> list[int]: ...
    def counters(self) -> dict[str, int]: ...
    def remove(self, rank: int, reason: str) -> None: ...
    def switch(self, joined: rendezvous.Joined, plan: plans.Plan) -> None: ...
    def ranks_of(self, places: Sequence[int]) -> list[int]: ...
    def places_of(self, ranks: Sequence[int]) -> list[int]: ...
    def retire(self) -> None: ...
    def leave(self, reason: str) -> None: ...
    def close(self, reason: str) -> None: ...


def newest_session() -> int:
    """Returns the number of the newest session that has begun, first 0."""
    return plans.News(coordination.published(plans.NEWS)).newest()


def announce_session(number: int) -> None:
    """Tells processes that come back that a session has begun."""
    coordination.publish(f"{plans.NEWS}/session/{number}", b"1", again=True)


def _run(task: Coroutine[Any, Any, _T]) -> _T:
    """Runs a task of the agreement in this thread, whose waits block."""
    try:
        task.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a wait has not blocked")


class _World(plans.World):
    """The others, the session and the time, for `agreement`.

    Attributes:
      state, step, drain: of the program, during `admit` and `join`.
      leaves: of the state of a process that comes back.
      received: the step and the bytes of the state that this process has received.
    """

    def __init__(self, session: Session, name: str) -> None:
        self.state: Any = None
        self.step = 0
        self.drain: Callable[[Any], Any] | None = None
        self.leaves: Sequence[state_transfer.Shards] = ()
        self.received = 0, 0
        self.ended = threading.Event()
        self._session = session
        self._name = name

    def now(self) -> float:
        return time.monotonic()

    def over(self) -> bool:
        return self.ended.is_set()

    async def sleep(self, seconds: float) -> None:
        self.ended.wait(seconds)

    async def age_s(self) -> float:
        return coordination.age_s()

    async def entry(self, key: str) -> bytes | None:
        return coordination.entry(key)

    async def entries(self, folder: str) -> Mapping[str, bytes]:
        return coordination.published(folder)

    async def wait(self, key: str, limit_s: float) -> bytes | None:
        return coordination.await_entry(key, limit_s, self.ended)

    async def publish(self, key: str, value: bytes) -> None:
        coordination.publish(key, value, again=True)

    async def claim(self, key: str, value: bytes) -> bytes:
        try:
            return coordination.claim(key, value) or value
        except RendezvousError:
            return value  # The job ends with the service.

    async def forget(self, key: str) -> None:
        coordination.forget(key)

    async def open(self, plan: plans.Plan) -> rendezvous.Joined:
        options = dataclasses.replace(
            self._session.options,
            rendezvous_timeout_s=agreement.OPEN_S,
            processes_per_slice=plan.per_slice,
        )
        rank, members = self._session.place, list(plan.members)
        world_size = None
        if options.replica:
            rank, world_size = members.index(rank), len(members)
            members = list(range(world_size))
        try:
            return rendezvous.join(
                plans.key(plan.number),
                f"{self._name}, session {plan.number}",
                rank,
                options,
                self._session.internal,
                members,
                world_size,
            )
        except RendezvousError as error:
            raise plans.PlanError(str(error)) from error

    def close(self, opened: rendezvous.Joined) -> None:
        opened.native.close("the plan was abandoned")

    async def move(self, coming: plans.Coming) -> None:
        if self.drain is not None:
            self.state = self.drain(self.state)
        jax.block_until_ready(self.state)
        self._session.switch(coming.opened, coming.plan)

    def retire(self) -> None:
        self._session.retire()

    def leave(self, reason: str) -> None:
        self._session.leave(reason)

    async def serve(self, plan: plans.Plan) -> None:
        try:
            leaves, error = state_transfer.on_host(self.state), ""
        except UsageError as refused:
            leaves, error = [], str(refused)
        rank = self._session.rank
        offer = {
            "rank": rank,
            "step": self.step,
            "bytes": state_transfer.size_bytes(leaves),
            "summary": state_transfer.summary(leaves),
            "error": error,
        }
        key = plans.key(plan.number, "state")
        coordination.publish(key, json.dumps(offer).encode())
        if error:
            return

        def send(receiver: int, to: int) -> None:
            try:
                digest = state_transfer.send(leaves, self._name, (rank, to))
            except state_transfer.TransferError as error:
                _log.warning("%s", error)
                return
            key = plans.key(plan.number, "digest", receiver)
            coordination.publish(key, digest.encode())

        # A thread waits for a receiver that dies, not the program.
        ranks = self._session.ranks_of(plan.newcomers)
        for pair in zip(plan.newcomers, ranks, strict=True):
            threading.Thread(target=send, args=pair, daemon=True).start()

    async def receive(self, plan: plans.Plan, offer: Mapping[str, Any]) -> str:
        del plan
        if offer["error"]:
            raise UsageError(offer["error"])
        ours = state_transfer.summary(self.leaves)
        if difference := state_transfer.difference(ours, offer["summary"]):
            raise UsageError(
                "the state of this program is not like that of the others: "
                f"{difference}. Build it as at a first start, and run the same program."
            )
        pair = (offer["rank"], self._session.rank)
        try:
            digest = state_transfer.receive(self.leaves, self._name, pair)
        except state_transfer.TransferError as error:
            raise plans.PlanError(str(error)) from error
        self.received = offer["step"], offer["bytes"]
        return digest

    def silent_ranks(self) -> Sequence[int]:
        return self._session.places_of(self._session.silent_ranks())

    def live_processes(self) -> int:
        return self._session.counters()["live_processes"]

    def remove(self, rank: int, reason: str) -> None:
        (of_session,) = self._session.ranks_of([rank])
        self._session.remove(of_session, reason)

    def log(self, line: str) -> None:
        _log.warning("%s", line)


class Admission:
    """The part of this process in sessions that follow each other."""

    def __init__(
        self,
        session: Session,
        name: str,
        running: int,
        life: int,
        members: Mapping[int, int],
    ) -> None:
        """Takes part from a session on.

        Args:
          session: the communicator.
          name: by which programs find the native communicator.
          running: number of the session; of a process that comes back: of the newest
            one that has begun.
          life: of this process.
          members: the life of the process of each rank in the session; empty for a
            process that comes back.
        """
        self._world = _World(session, name)
        self._session = session
        replicas = bool(session.options.replica)
        self._agreement = agreement.Agreement(
            self._world,
            session.place,
            life,
            session.options.replicas_min if replicas else session.world_size,
            session.options.processes_per_slice,
            running,
            {rank: plans.Member(life, 0) for rank, life in members.items()},
            replicas=replicas,
        )
        self._made_s = time.monotonic()
        self._thread: threading.Thread | None = None

    # ---- The thread.

    def watch(self) -> None:
        """Takes part in plans from now on."""
        if self._thread is None and not self._world.over():
            # A switch waits for programs in this way, and need not compile for it.
            programs.wait()
            self._thread = threading.Thread(
                target=self._watch, name="jax_optireduce admission", daemon=True
            )
            self._thread.start()

    def announce_end(self) -> None:
        """Tells processes that come back that the program has ended."""
        _run(self._agreement.announce_end())

    def end(self) -> None:
        """Takes part no more."""
        self._world.ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)
        coming = self._agreement.coming
        if coming is not None:
            coming.opened.native.close("the session has ended")
        _run(self._agreement.signs.end())

    def _watch(self) -> None:
        period_s = _POLL_S * max(1.0, self._session.world_size / _POLL_RANKS)
        with coordination.waits_end_with(self._world.ended):
            while not self._world.ended.wait(period_s):
                try:
                    _run(self._agreement.poll())
                except plans.ReplacedError as error:
                    # Its log names the reason at the end.
                    self._session.close(str(error))
                    return
                except Exception:  # noqa: BLE001 (training goes on without this plan)
                    _log.exception("the admission of ranks that come back failed")

    # ---- The program of a member.

    def admit(self, state: Any, step: int, drain: Callable[[Any], Any] | None) -> Any:
        """See `jax_optireduce.admit`."""
        if self._thread is None:
            self.watch()
        if self._agreement.coming is None:
            return state

        def newest_call() -> int:
            jax.block_until_ready(state)
            return self._session.newest_call()

        coming = _run(self._agreement.admit(newest_call))
        return state if coming is None else self._switch(coming, state, step, drain)

    def _switch(
        self,
        coming: plans.Coming,
        state: Any,
        step: int,
        drain: Callable[[Any], Any] | None,
    ) -> Any:
        """Continues in the next session."""
        begun_s = time.monotonic()
        world, plan = self._world, coming.plan
        world.state, world.step, world.drain = state, step, drain
        failed = _run(self._agreement.begin(coming))
        state, world.state, world.drain = world.state, None, None
        for rank, reason in failed.items():
            _log.warning("rank %d did not get the state: %s", rank, reason)
        back = [str(rank) for rank in plan.newcomers if rank not in failed]
        if back:
            _log.info(
                "rank %s back in step %d, in session %d: this process waited %.2f s",
                ", ".join(back),
                step,
                plan.number,
                time.monotonic() - begun_s,
            )
        return state

    # ---- The program of a process that has come back.

    def join(
        self, state: Any, step: int, limit_s: float | None
    ) -> tuple[Any, int] | None:
        """Takes the place of an earlier life; see `jax_optireduce.join`.

        Returns:
          The state and the step of the others; None if the job begins anew.

        Raises:
          RendezvousError: the others have not admitted this process in time.
          UsageError: the state is not like that of the others.
        """
        world, asked_s = self._world, time.monotonic()
        self._withdraw()
        self.watch()
        world.leaves = state_transfer.on_host(state)
        world.state, world.step = state, step
        try:
            got = _run(self._agreement.come_back(limit_s, step))
        except plans.ReplacedError as error:
            self._session.close(str(error))
            raise RendezvousError(f"this process does not come back: {error}") from None
        leaves, world.leaves, world.state = world.leaves, (), None
        if not got:
            return None
        state = state_transfer.rebuilt(state, leaves)
        step, size_bytes = world.received
        now, age_s = time.monotonic(), _age_s()
        _log.info(
            "rank %d, life %d: back in step %d, %.2f s after its start: %.2f s until "
            "init, %.2f s until join, %.2f s for the others and %.1f MB of state",
            self._session.place,
            self._agreement.life,
            step,
            age_s,
            age_s - (now - self._made_s),
            asked_s - self._made_s,
            now - asked_s,
            size_bytes / 1e6,
        )
        return state, step

    def _withdraw(self) -> None:
        """Leaves the session of this process, if it has one."""
        if self._thread is None:
            return
        self.end()
        self._thread.join()
        self._thread = None
        self._agreement.withdraw()
        self._session.leave("it joins again")
        self._world.ended.clear()


def _age_s() -> float:
    """Returns the time since the start of this process, in seconds."""
    # Source: proc(5). Its name, in parentheses, may have spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
