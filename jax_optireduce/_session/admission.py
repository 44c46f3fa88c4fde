"""Ranks that come back: the next session, which has them, opens beside the running one.

The processes agree through the coordination service, by entries of which all but the
first two are made once:

  session               the number of the newest session that has begun
  wishes/<place>        a process that was started again: its life, and its attempt
  <n>/plan              the members of session n: made by one member that sees a wish
  <n>/ready/<place>     the member has opened session n, and proven its paths
  <n>/stop/<place>      a member of the running session: its program does not pass this
                        step before the decision
  <n>/decision          the step at which session n begins, or why it never does
  <n>/state             the structure of the state, from the source to those that return
  <n>/digest/<place>    the SHA-256 of the bytes that the source has sent there
  <n>/ended/<place>     the program of a member has ended: the number of live members
  <n>/level/<place>     the process that has come back has the state, or is too late

A thread of each member does all that but the switch: the program does not wait for the
opening, and a plan that fails changes nothing. The program takes part in `admit`: at
the step of the decision it drains, its calls find the next session from then on, and
the source sends its state. All members wait for that, and every wait has a bound.
"""

import contextlib
import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from jax_optireduce._errors import RendezvousError, UsageError
from jax_optireduce._jax import coordination, programs
from jax_optireduce._session import lives, rendezvous, state_transfer
from jax_optireduce._session.options import Internal, Options

_log = logging.getLogger("jax_optireduce")

_FOLDER = "jax_optireduce"

# Period in which a member asks for plans and wishes, in seconds. Chosen: a part of the
# start of a process, and a few requests per second of each rank.
_POLL_S = 0.2

# Period of polls while others are about to answer, in seconds. Chosen: answers take
# milliseconds.
_POLL_SOON_S = 0.005

# Time after which another member proposes a plan, if the one before has not, in
# seconds. Chosen: several polls.
_TURN_S = 1.0

# Longest wait for the thread at the end of a session, in seconds. Chosen: its waits end
# with the session, most of them in tenths of a second.
_END_S = 2.0

# Longest step of the opening of a session, in seconds. Chosen: twice the proof of the
# paths. All its processes run already.
_OPEN_S = 10.0

# Longest wait for the steps at which the members may stop, in seconds. Chosen: their
# threads answer in milliseconds, on a busy host in tenths of a second.
_AGREE_S = 2.0

# Longest wait of all members for the state of those that return, in seconds: these, and
# one more for so many bytes. Chosen: a start, and a link of 1 Gbit/s that is half busy.
_LEVEL_S = 5.0
_LEVEL_BYTES_PER_S = 60e6


class Session(Protocol):
    """The interface of the communicator of this process."""

    rank: int
    world_size: int
    options: Options
    internal: Internal

    def silent_ranks(self) -> list[int]: ...
    def counters(self) -> dict[str, int]: ...
    def remove(self, rank: int, reason: str) -> None: ...
    def switch(self, joined: rendezvous.Joined, number: int) -> None: ...
    def leave(self, reason: str) -> None: ...
    def close(self, reason: str) -> None: ...


@dataclasses.dataclass(frozen=True)
class Plan:
    """A session that is to follow.

    Attributes:
      number: of the session, among all of the job.
      members: life and attempt of each process, by its rank.
      newcomers: the ranks that come back. Without any, all processes of the job were
        started again, and begin it anew.
      source: the rank whose state they get.
      per_slice: processes of a slice.
    """

    number: int
    members: Mapping[int, tuple[int, int]]
    newcomers: Sequence[int]
    source: int
    per_slice: int

    def survivors(self) -> list[int]:
        """Returns the members of the running session."""
        return [rank for rank in self.members if rank not in self.newcomers]

    def encoded(self) -> bytes:
        """Returns the plan as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()


# The entry of a process that has the state.
_LEVEL = b"1"


class _PlanError(Exception):
    """A plan fails, for the reason of the text; the log has it."""


def _decoded(entry: bytes) -> Plan:
    fields = json.loads(entry)
    members = {int(rank): tuple(life) for rank, life in fields["members"].items()}
    return Plan(**{**fields, "members": members})


@dataclasses.dataclass
class _Next:
    """The session that this process has opened beside the running one."""

    plan: Plan
    joined: rendezvous.Joined
    step: int


def _key(number: int, *rest: object) -> str:
    return "/".join(map(str, (_FOLDER, number, *rest)))


def newest_session() -> int:
    """Returns the number of the newest session that has begun, first 0."""
    return int(coordination.entry(f"{_FOLDER}/session") or b"0")


def announce_session(number: int) -> None:
    """Tells processes that come back the number of the newest session."""
    coordination.publish(f"{_FOLDER}/session", str(number).encode(), again=True)


def _await(
    find: Callable[[], bytes | None], limit_s: float, over: Callable[[], bool]
) -> bytes | None:
    """Waits for an entry; returns None after `limit_s`, or once all is `over`."""
    end = time.monotonic() + limit_s
    while (found := find()) is None and not over() and time.monotonic() < end:
        time.sleep(_POLL_SOON_S)
    return found


class Admission:
    """The part of this process in sessions that follow each other."""

    def __init__(
        self,
        session: Session,
        name: str,
        number: int,
        life: int,
        members: Mapping[int, tuple[int, int]],
    ) -> None:
        """Takes part from session `number` on.

        Args:
          session: the communicator.
          name: by which programs find the native communicator.
          number: of the running session, or of a process that comes back: of the newest
            one that has begun.
          life: of this process.
          members: life and attempt of each process of the session; empty for a process
            that comes back.
        """
        self._session = session
        self._name = name
        self._number = number
        self._life = life
        self._attempt = 0
        self._members = dict(members)
        # Wishes that did not come true: of processes that may be dead.
        self._refused: dict[int, tuple[int, int]] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        # Guards the following members; notified when they change.
        self._changed = threading.Condition()
        self._step: int | None = None  # the newest one that the program has told
        self._stop: int | None = None  # the program may not pass it yet
        self._next: _Next | None = None

    # ---- The thread.

    def watch(self, step: int) -> None:
        """Takes part in plans from now on; the program is at `step`."""
        with self._changed:
            self._step = step
        if self._thread is None and not self._over.is_set():
            # A switch waits for programs in this way, and need not compile for it.
            programs.wait()
            self._thread = threading.Thread(
                target=self._run, name="jax_optireduce admission", daemon=True
            )
            self._thread.start()

    def announce_end(self) -> None:
        """Tells processes that come back that the program has ended."""
        live = str(self._session.counters()["live_processes"]).encode()
        coordination.publish(_key(self._number, "ended", self._session.rank), live)

    def end(self) -> None:
        """Takes part no more."""
        self._over.set()
        with self._changed:
            unused, self._next = self._next, None
            self._changed.notify_all()
        if unused is not None:
            unused.joined.native.close("the session has ended")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _run(self) -> None:
        with coordination.waits_end_with(self._over):
            self._follow()

    def _follow(self) -> None:
        """Takes part in plans until the end of the session."""
        seen_s: dict[int, float] = {}
        while not self._over.wait(_POLL_S):
            try:
                if lives.newest(self._session.rank) > self._life:
                    self._replaced()
                    return
                plan = self._find_plan() or self._proposed(seen_s)
                if plan is not None and self._next is None:
                    self._prepare(plan)
            except Exception:  # noqa: BLE001 (training goes on without this plan)
                _log.exception("the admission of ranks that come back failed")

    def _replaced(self) -> None:
        newest = lives.newest(self._session.rank)
        reason = f"life {self._life} was replaced by life {newest} of its rank"
        _log.warning("rank %d leaves: %s.", self._session.rank, reason)
        self._session.close(reason)

    def _find_plan(self) -> Plan | None:
        """Returns the next plan, once it exists."""
        entry = coordination.entry(_key(self._number + 1, "plan"))
        return None if entry is None else _decoded(entry)

    def _wishes(self) -> dict[int, tuple[int, int]]:
        """Returns life and attempt of the processes that want to come back."""
        published = coordination.published(f"{_FOLDER}/wishes")
        wishes = {
            int(rank): tuple(json.loads(wish)) for rank, wish in published.items()
        }
        none = (0, 0)
        return {
            rank: wish
            for rank, wish in wishes.items()
            if wish > max(self._members.get(rank, none), self._refused.get(rank, none))
            # A process that has died since may have been started again.
            and wish[0] == lives.newest(rank)
        }

    def _proposed(self, seen_s: dict[int, float]) -> Plan | None:
        """Proposes a plan if it is the turn of this rank; returns the plan in force.

        Args:
          seen_s: when this rank has seen the wish of each place first.
        """
        wishes = self._wishes()
        now = time.monotonic()
        for rank in seen_s.keys() - wishes.keys():
            del seen_s[rank]
        if not wishes:
            return None
        for rank in wishes:
            seen_s.setdefault(rank, now)
        silent = self._session.silent_ranks()
        live = [r for r in self._members if r not in silent and r not in wishes]
        majority = 2 * len(live) > self._session.counters()["live_processes"]
        if not majority or self._session.rank not in live:
            return None  # The others may go on without these.
        turn_s = live.index(self._session.rank) * _TURN_S
        if now < min(seen_s.values()) + turn_s:
            return None
        members = {r: self._members[r] for r in live} | wishes
        plan = Plan(
            number=self._number + 1,
            members=dict(sorted(members.items())),
            newcomers=sorted(wishes),
            source=live[0],
            per_slice=self._session.options.processes_per_slice,
        )
        coordination.claim(_key(plan.number, "plan"), plan.encoded())
        return self._find_plan()

    # ---- The opening.

    def open(self, plan: Plan) -> rendezvous.Joined:
        """Opens the session of a plan beside the running one.

        Raises:
          RendezvousError: a member did not, or its paths are not proven.
        """
        options = dataclasses.replace(
            self._session.options,
            rendezvous_timeout_s=_OPEN_S,
            processes_per_slice=plan.per_slice,
        )
        return rendezvous.join(
            _key(plan.number),
            f"{self._name}, session {plan.number}",
            self._session.rank,
            options,
            self._session.internal,
            list(plan.members),
        )

    def _prepare(self, plan: Plan) -> None:
        """Opens the session of a plan, and agrees on the step at which it begins."""
        rank = self._session.rank
        if plan.members.get(rank) != self._members[rank]:
            _log.warning(
                "the others continue in session %d without this process, rank %d, "
                "which they have not heard.",
                plan.number,
                rank,
            )
            self._number = plan.number
            return
        # So no call waits for their silence.
        for place in plan.newcomers:
            if place in self._members:
                life = plan.members[place][0]
                self._session.remove(place, f"life {life} takes its place")
        joined, begins = None, None
        try:
            try:
                joined = self.open(plan)
                self._agree(plan)
            except (RendezvousError, _PlanError) as error:
                self._decide(plan, {"abandoned": str(error)})
            decision = self._decision(plan)
            if "step" in decision and joined is not None:
                begins = _Next(plan, joined, decision["step"])
        finally:
            with self._changed:
                self._stop, self._next = None, begins
                self._changed.notify_all()
        if begins is None:
            why = decision.get("abandoned", "this process has not opened it.")
            self._abandoned(plan, joined, why)

    def _abandoned(self, plan: Plan, joined: Any, why: str) -> None:
        if joined is not None:
            joined.native.close("the plan was abandoned")
        _log.warning(
            "session %d, with rank %s, does not begin: %s Training goes on as before.",
            plan.number,
            ", ".join(map(str, plan.newcomers)),
            why,
        )
        self._number = plan.number
        self._refused |= {rank: plan.members[rank] for rank in plan.newcomers}

    def _agree(self, plan: Plan) -> None:
        """Agrees with the other members on the step at which the session begins.

        Raises:
          _PlanError: a member has not answered in time.
        """
        coordination.publish(_key(plan.number, "ready", self._session.rank), b"1")
        self._await_all(plan, "ready", list(plan.members), _OPEN_S)
        with self._changed:
            if self._step is None:
                raise _PlanError("its program has not called admit.")
            # The program waits there for the decision.
            self._stop = self._step + 1
        stop = str(self._stop).encode()
        coordination.publish(_key(plan.number, "stop", self._session.rank), stop)
        stops = self._await_all(plan, "stop", plan.survivors(), _AGREE_S)
        self._decide(plan, {"step": max(map(int, stops.values()))})

    def _await_all(
        self, plan: Plan, name: str, ranks: Sequence[int], limit_s: float
    ) -> dict[int, bytes]:
        """Returns the entries of this name of these ranks.

        Raises:
          _PlanError: one is missing.
        """
        end = time.monotonic() + limit_s
        found: dict[int, bytes] = {}
        for rank in ranks:
            entry = _await(
                lambda rank=rank: coordination.entry(_key(plan.number, name, rank)),
                max(0.0, end - time.monotonic()),
                lambda: self._decided(plan) is not None,
            )
            if entry is None:
                raise _PlanError(f"rank {rank} has not entered {name!r} in time.")
            found[rank] = entry
        return found

    def _decide(self, plan: Plan, decision: Mapping[str, Any]) -> None:
        """Enters the decision, unless there is one."""
        key = _key(plan.number, "decision")
        with contextlib.suppress(RendezvousError):
            coordination.claim(key, json.dumps(decision).encode())

    def _decided(self, plan: Plan) -> bytes | None:
        return coordination.entry(_key(plan.number, "decision"))

    def _decision(self, plan: Plan) -> dict[str, Any]:
        entry = _await(lambda: self._decided(plan), _OPEN_S, self._over.is_set)
        missing = {"abandoned": "the coordination service does not answer."}
        return missing if entry is None else json.loads(entry)

    # ---- The program of a member.

    def admit(self, state: Any, step: int, drain: Callable[[Any], Any] | None) -> Any:
        """See `jax_optireduce.admit`."""
        self.watch(step)
        with self._changed:
            while self._stop is not None and step >= self._stop:
                # For as long as the decision may take, at most.
                self._changed.wait(_POLL_S)
            begins = self._next
            if begins is None or step < begins.step:
                return state
            self._next = None
            self._number = begins.plan.number
            self._members = dict(begins.plan.members)
        return self._switch(begins, state, step, drain)

    def _switch(
        self,
        begins: _Next,
        state: Any,
        step: int,
        drain: Callable[[Any], Any] | None,
    ) -> Any:
        """Continues in the next session."""
        begun_s = time.monotonic()
        plan = begins.plan
        if drain is not None:
            state = drain(state)
        jax.block_until_ready(state)
        self._session.switch(begins.joined, plan.number)
        switched_s = time.monotonic()
        if self._session.rank == plan.source:
            self._serve(plan, state)
        size_bytes = self._await_level(plan)
        ended_s = time.monotonic()
        _log.info(
            "rank %s back in step %d, in session %d: this process waited %.2f s, %.2f "
            "of them for %.1f MB of state from rank %d",
            ", ".join(map(str, plan.newcomers)),
            step,
            plan.number,
            ended_s - begun_s,
            ended_s - switched_s,
            size_bytes / 1e6,
            plan.source,
        )
        if self._session.rank == plan.source:
            coordination.forget(_key(plan.number - 1))
        return state

    def _serve(self, plan: Plan, state: Any) -> None:
        """Sends the state to the processes that have come back, as the source."""
        try:
            leaves, error = state_transfer.on_host(state), ""
        except UsageError as refused:
            leaves, error = [], str(refused)
        offer = {
            "summary": state_transfer.summary(leaves),
            "bytes": state_transfer.size_bytes(leaves),
            "error": error,
        }
        coordination.publish(_key(plan.number, "state"), json.dumps(offer).encode())
        if error:
            return

        def send(rank: int) -> None:
            try:
                digest = state_transfer.send(leaves, self._name, (plan.source, rank))
            except state_transfer.TransferError as error:
                _log.warning("%s", error)
                return
            key = _key(plan.number, "digest", rank)
            coordination.publish(key, digest.encode())

        # A thread waits for a receiver that dies, not the program.
        for rank in plan.newcomers:
            threading.Thread(target=send, args=(rank,), daemon=True).start()

    def _await_level(self, plan: Plan) -> int:
        """Waits for those that come back; returns the bytes of the state."""
        key = _key(plan.number, "state")
        entry = _await(lambda: coordination.entry(key), _LEVEL_S, self._over.is_set)
        size_bytes = 0 if entry is None else json.loads(entry)["bytes"]
        limit_s = _LEVEL_S + size_bytes * len(plan.newcomers) / _LEVEL_BYTES_PER_S
        end = time.monotonic() + (0.0 if entry is None else limit_s)
        for rank in plan.newcomers:
            key = _key(plan.number, "level", rank)
            level = _await(
                lambda key=key: coordination.entry(key),
                max(0.0, end - time.monotonic()),
                self._over.is_set,
            )
            # From now on the state that it gets is too old.
            level = level or self._claimed(key, b"it took too long.")
            if level != _LEVEL:
                _log.warning("rank %d did not get the state: %s", rank, level.decode())
        return size_bytes

    def _claimed(self, key: str, value: bytes) -> bytes:
        """Enters a value unless there is one; returns the entry."""
        with contextlib.suppress(RendezvousError):
            return coordination.claim(key, value) or value
        return value

    # ---- The program of a process that has come back.

    def join(self, state: Any, step: int, limit_s: float | None) -> tuple[Any, int]:
        """Takes the place of an earlier life; see `jax_optireduce.join`.

        Raises:
          RendezvousError: the others have not admitted this process in time.
          UsageError: the state is not like that of the others.
        """
        begun_s = time.monotonic()
        leaves = state_transfer.on_host(state)
        end = None if limit_s is None else begun_s + limit_s
        while True:
            self._attempt += 1
            wish = json.dumps([self._life, self._attempt]).encode()
            place = f"{_FOLDER}/wishes/{self._session.rank}"
            coordination.publish(place, wish, again=True)
            if (admitted := self._admitted(end)) is None:
                continue
            plan, first_step = admitted
            if not plan.newcomers:
                break  # The whole job begins anew.
            try:
                self._receive(plan, leaves)
            except (state_transfer.TransferError, _PlanError, UsageError) as error:
                self._level(plan, str(error).encode())
                self._session.leave(str(error))
                if isinstance(error, UsageError):
                    raise
                _log.warning("%s This process tries again.", error)
                continue
            state, step = state_transfer.rebuilt(state, leaves), first_step
            break
        coordination.forget(place)
        self.watch(step)
        _log.info(
            "rank %d, life %d: back in step %d after %.2f s",
            self._session.rank,
            self._life,
            step,
            time.monotonic() - begun_s,
        )
        return state, step

    def _level(self, plan: Plan, level: bytes) -> bytes:
        """Tells the others that this process has the state, or why not, in time."""
        return self._claimed(_key(plan.number, "level", self._session.rank), level)

    def _admitted(self, end: float | None) -> tuple[Plan, int] | None:
        """Waits until a session with this process begins; returns its first step.

        The result is None if the plan was abandoned.

        Raises:
          RendezvousError: none began in time.
        """
        own = (self._life, self._attempt)
        plan = self._await_plan(end)
        while plan.members.get(self._session.rank) != own:
            plan = self._await_plan(end)
        joined = None
        try:
            joined = self.open(plan)
            ready = _key(plan.number, "ready", self._session.rank)
            coordination.publish(ready, b"1")
            if not plan.newcomers:
                self._await_all(plan, "ready", list(plan.members), _OPEN_S)
                self._decide(plan, {"step": 0})
        except (RendezvousError, _PlanError) as error:
            self._decide(plan, {"abandoned": str(error)})
        decision = self._decision(plan)
        if "step" in decision and joined is not None:
            self._members = dict(plan.members)
            self._session.switch(joined, plan.number)
            return plan, decision["step"]
        if joined is not None:
            joined.native.close("the plan was abandoned")
        return None

    def _await_plan(self, end: float | None) -> Plan:
        told_s = time.monotonic()
        while (plan := self._find_plan() or self._anew()) is None:
            # The entries of earlier plans are deleted.
            self._number = max(self._number, newest_session())
            self._check_running()
            now = time.monotonic()
            if end is not None and now >= end:
                raise RendezvousError(
                    f"rank {self._session.rank} was not admitted by the others. Their "
                    "programs must call admit(state, step) in their loops, and more "
                    "than half of the ranks must run."
                )
            stall_s = self._session.options.stall_timeout_s
            if stall_s and now - told_s >= stall_s:
                told_s = now
                _log.warning(
                    "rank %d, life %d, waits for the others to admit it.",
                    self._session.rank,
                    self._life,
                )
            time.sleep(_POLL_S)
        self._number = plan.number
        return plan

    def _check_running(self) -> None:
        """Raises if the programs of most live members have ended."""
        ended = coordination.published(_key(self._number, "ended"))
        if ended and 2 * len(ended) > min(map(int, ended.values())):
            raise RendezvousError(
                f"rank {self._session.rank} comes back too late: the programs of the "
                "others have ended."
            )

    def _anew(self) -> Plan | None:
        """Proposes to begin anew, if all processes of the job were started again."""
        wishes = self._wishes()
        if len(wishes) < self._session.world_size or self._session.rank:
            return None
        plan = Plan(
            number=self._number + 1,
            members=dict(sorted(wishes.items())),
            newcomers=[],
            source=0,
            per_slice=self._session.options.processes_per_slice,
        )
        coordination.claim(_key(plan.number, "plan"), plan.encoded())
        return self._find_plan()

    def _receive(self, plan: Plan, leaves: Sequence[state_transfer.Shards]) -> None:
        """Receives the state of the source."""
        key = _key(plan.number, "state")
        level_key = _key(plan.number, "level", self._session.rank)
        limit_s = self._session.options.call_timeout_s or float("inf")
        entry = _await(
            lambda: coordination.entry(key),
            limit_s,
            # The others go on without this process if the source has died.
            lambda: self._over.is_set() or coordination.entry(level_key) is not None,
        )
        if entry is None:
            raise _PlanError(f"rank {plan.source} did not offer its state.")
        offer = json.loads(entry)
        if offer["error"]:
            raise UsageError(offer["error"])
        ours = state_transfer.summary(leaves)
        if difference := state_transfer.difference(ours, offer["summary"]):
            raise UsageError(
                "the state of this program is not like that of the others: "
                f"{difference}. Build it as at a first start, and run the same program."
            )
        pair = (plan.source, self._session.rank)
        digest = state_transfer.receive(leaves, self._name, pair)
        key = _key(plan.number, "digest", self._session.rank)
        sent = _await(lambda: coordination.entry(key), _OPEN_S, self._over.is_set)
        if sent is None or sent.decode() != digest:
            raise _PlanError(
                f"the state of rank {plan.source} has arrived with other bits: SHA-256 "
                f"{digest} instead of {sent and sent.decode()}."
            )
        level = self._level(plan, _LEVEL)
        if level != _LEVEL:
            raise _PlanError(f"the others went on: {level.decode()}")
