"""Processes that die, stop and come back, in virtual time: `_session/agreement.py`.

Each process has two tasks, as in a program: its training, and the thread that takes
part in plans. The session, its sockets and the state are models. A fault may come at
each `await`: a process dies or stops, and an entry that it has sent is made all the
same. `Simulation(seed).run()` raises `AssertionError` with the first broken rule.

With `replicas` the processes are those of `_session/replicas.py`: any number of them
may begin, and leave for good; a program joins again after the error of a call. The
coordinator, too, may be started again.
"""

import argparse
import collections
import dataclasses
import heapq
import itertools
import json
import random
import sys
import types
from collections.abc import Callable, Coroutine
from typing import Any

from jax_optireduce._errors import RendezvousError
from jax_optireduce._session import agreement, plans

# Silence after which a session removes a member, in seconds.
PEER_TIMEOUT_S = 3.0

# Time without a majority after which a call fails, in seconds.
CALL_TIMEOUT_S = 20.0

# Time from the last fault to the end, in seconds: all are back then.
SETTLE_S = 240.0

# Time after the last fault in which one that waits for an entry may come, in seconds.
# Chosen: longer than a plan.
LAST_S = 30.0

# The entries at which a fault may come, by the first words of their keys.
MOMENTS = (
    *("steps", "wishes", "signs", "plan", "ready", "open", "stop", "decision"),
    *("moved", "session", "source", "state", "digest", "level"),
)

# The kinds of faults, and those that only replicas survive.
KINDS = ("kill", "kill two", "stop", "replace", "cut")
REPLICA_KINDS = (*KINDS, "restart", "leave")

# Time after all are back in which nothing may change, in seconds.
REST_S = 5.0

# Longest time of one request, or of the moment in which a thread goes on, in seconds.
SLACK_S = 2.0


@types.coroutine
def _suspend(request):
    return (yield request)


class ProcessError(Exception):
    """The program of a process ends with an error."""


@dataclasses.dataclass(eq=False)
class Process:
    """A process of a rank."""

    rank: int
    life: int
    alive: bool = True
    stopped_s: float | None = None
    # Since when its datagrams are lost, while it reaches the coordination service.
    cut_s: float | None = None
    deferred: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    session: "Session | None" = None
    part: agreement.Agreement | None = None
    state: tuple[tuple[int, int], ...] | None = None
    # Since when it was last stopped or woken: waits since then are the stop's.
    disturbed_s: float = 0.0
    step: int = 0
    # The state and the step with which it wants to come back.
    own: tuple[tuple[tuple[int, int], ...] | None, int] = (None, 0)
    # Number of times it has joined again: tasks of an earlier time end.
    joined: int = 0
    # Whether it comes back.
    joins: bool = False
    # The news that it knows, and the coordinator of which it knows them.
    news: dict[str, bytes] = dataclasses.field(default_factory=dict)
    coordinator: int = 0


@dataclasses.dataclass(eq=False)
class Session:
    """A model of a session."""

    number: int
    members: dict[int, Process]
    plan: bytes = b""
    newest: int = -1
    calls: dict[int, int] = dataclasses.field(default_factory=dict)
    draining: dict[int, int] = dataclasses.field(default_factory=dict)
    removed: set[int] = dataclasses.field(default_factory=set)
    asked: set[int] = dataclasses.field(default_factory=set)
    left: set[int] = dataclasses.field(default_factory=set)
    # Sessions and calls at which each session ended: equal on all members.
    state: tuple[tuple[int, int], ...] | None = None
    newcomers: tuple[int, ...] = ()

    def gone(self, now: float, viewer: Process) -> set[int]:
        """Returns the members that one has not heard, and those that have left."""
        silent = {
            rank
            for rank, process in self.members.items()
            if process is not viewer
            and any(
                since is not None and now - since > PEER_TIMEOUT_S
                for since in (process.stopped_s, process.cut_s, viewer.cut_s)
            )
        }
        return silent | self.left | self.asked | self.removed

    def update(self, now: float, viewer: Process) -> bool:
        """Removes members; returns whether the viewer is in a majority."""
        live = self.members.keys() - self.removed
        gone = self.gone(now, viewer) - self.removed
        if 2 * (len(live) - len(gone)) <= len(live):
            return False
        self.removed |= gone
        return True


class World:
    """The others, the session and the time of a simulated process."""

    def __init__(self, simulation: "Simulation", process: Process) -> None:
        self.simulation = simulation
        self.process = process
        self.before: list[Session] = []

    def now(self):
        return self.simulation.now

    def over(self):
        return False

    async def sleep(self, seconds):
        await _suspend(("sleep", seconds))

    async def age_s(self):
        def age_s(_):
            return self.simulation.now - self.simulation.restarted_s

        return await _suspend(("request", age_s))

    async def entry(self, key):
        return await _suspend(("request", lambda store: store.get(key)))

    async def entries(self, folder):
        start = folder + "/"

        def find(store):
            found = {key: of for key, of in store.items() if key.startswith(start)}
            if folder == plans.NEWS:
                self.process.news = found
            return {key[len(start) :]: value for key, value in found.items()}

        return await _suspend(("request", find))

    async def wait(self, key, limit_s):
        return await _suspend(("wait", key, limit_s))

    async def publish(self, key, value):
        if key.startswith(plans.NEWS):
            self.process.news[key] = value
        await _suspend(("request", lambda _: self._set(key, value)))

    def _set(self, key, value):
        self.simulation.set(self.process, key, value)

    async def claim(self, key, value):
        def claim(store):
            if key not in store:
                self._set(key, value)
            return store[key]

        return await _suspend(("request", claim))

    async def forget(self, key):
        self.process.news.pop(key, None)

        def forget(store):
            for name in list(store):
                if name == key or name.startswith(key + "/"):
                    del store[name]

        await _suspend(("request", forget))

    async def open(self, plan):
        """Opens a session: all members must do so in time, as in the real one."""
        simulation, rank = self.simulation, self.process.rank
        await self.sleep(simulation.random.uniform(0.02, 0.2))
        await self.publish(plans.key(plan.number, "socket", rank), b"1")
        end = self.now() + agreement.OPEN_S
        for member in plan.members:
            key = plans.key(plan.number, "socket", member)
            if await self.wait(key, max(0.0, end - self.now())) is None:
                raise plans.PlanError(f"rank {member} did not join.")
        members = [p for r, p in simulation.processes.items() if r in plan.members]
        cut = any(process.cut_s is not None for process in members)
        if cut or simulation.random.random() < simulation.unproven:
            raise plans.PlanError("a path is not proven.")
        session = simulation.sessions.get(plan.number)
        # A coordinator that was started again may give a number a second time.
        if session is None or session.plan != plan.encoded():
            newcomers = tuple(plan.newcomers)
            session = Session(plan.number, {}, plan.encoded(), newcomers=newcomers)
            simulation.sessions[plan.number] = session
        session.members[rank] = self.process
        return session

    def close(self, opened):
        opened.left.add(self.process.rank)

    async def move(self, coming):
        process, session = self.process, self.process.session
        if session is not None:
            if self.simulation.drains:
                await self._drain(session)
            self.before.append(session)
        new = coming.opened
        process.session = new
        new.calls[process.rank] = -1
        if session is not None:
            at = (session.number, session.calls[process.rank])
            process.state = (*process.state, at)
            if new.state is None:
                new.state = process.state
            assert process.state == new.state, "ranks have moved at different calls"
        elif process.rank not in coming.plan.newcomers:
            self.simulation.begun_anew(new)
            process.state = new.state = process.state or ()

    async def _drain(self, session):
        """Waits until all members that live drain, as an exact call."""
        rank = self.process.rank
        session.draining[rank] = session.calls[rank]
        end = self.now() + CALL_TIMEOUT_S
        while True:
            if self.now() >= end:
                raise ProcessError("no majority")
            majority = session.update(self.now(), self.process)
            left = session.left - {rank}
            waiting = session.members.keys() - session.removed - session.draining.keys()
            # Members that have moved had drained.
            if not waiting - left and (majority or left):
                break
            await self.sleep(0.02)
        self.simulation.drained(session)

    def retire(self):
        for session in self.before:
            session.left.add(self.process.rank)
        self.before = []

    def leave(self, reason):  # noqa: ARG002 (of the interface)
        session, self.process.session = self.process.session, None
        session.left.add(self.process.rank)
        for before in self.before:
            before.left.add(self.process.rank)
        self.before = []
        self.process.state, self.process.step = self.process.own

    async def serve(self, plan):
        simulation, process = self.simulation, self.process
        offer = {"rank": process.rank, "bytes": simulation.state_bytes, "error": ""}
        offer["state"], offer["step"] = process.state, process.step
        key = plans.key(plan.number, "state")
        await self.publish(key, json.dumps(offer).encode())
        for rank in plan.newcomers:
            simulation.start(process, self._send(plan, rank))

    async def _send(self, plan, rank):
        await self.sleep(self.simulation.transfer_s())
        await self.publish(plans.key(plan.number, "digest", rank), b"digest")

    async def receive(self, plan, offer):  # noqa: ARG002 (of the interface)
        session, source = self.process.session, offer["rank"]
        end = self.now() + self.simulation.transfer_s()
        while self.now() < end:
            await self.sleep(0.1)
            if source in session.gone(self.now(), self.process):
                raise plans.PlanError(f"rank {source} is silent.")
        self.process.state = tuple(map(tuple, offer["state"]))
        self.process.step = offer["step"]
        return "digest"

    def silent_ranks(self):
        session = self.process.session
        return () if session is None else session.gone(self.now(), self.process)

    def live_processes(self):
        session = self.process.session
        session.update(self.now(), self.process)
        return len(session.members.keys() - session.removed)

    def remove(self, rank, reason):  # noqa: ARG002 (of the interface)
        self.process.session.asked.add(rank)

    def log(self, line):
        self.simulation.note(self.process, line)


class Simulation:
    """A job of some ranks, and its faults."""

    def __init__(
        self,
        seed: int,
        ranks: int | None = None,
        faults: int | None = None,
        *,
        replicas: bool = False,
        armed: dict[str, str] | None = None,
    ):
        """Draws the job from its seed; `armed` are more faults, see the attribute."""
        self.seed = seed
        self.replicas = replicas
        self.random = random.Random(seed)
        draw = self.random
        self.ranks = draw.choice((3, 3, 4, 4, 5, 8)) if ranks is None else ranks
        self.step_s = draw.choice((0.05, 0.2, 1.0, 20.0))
        self.calls_per_step = draw.choice((1, 1, 2, 5))
        self.latency_s = draw.choice((0.0005, 0.002, 0.02))
        self.state_bytes = draw.choice((1e3, 1e6, 1e9))
        self.unproven = draw.choice((0.0, 0.0, 0.02))
        self.drains = draw.random() < 0.7
        self.faults = draw.randint(1, 12) if faults is None else faults
        # Mean time between faults, in seconds.
        self.pace_s = draw.choice((0.3, 2.0, 8.0))
        self.least = draw.randint(1, self.ranks) if replicas else self.ranks
        # Share of requests that are slow.
        self.slow = draw.choice((0.0, 0.0, 0.01))
        # The faults that wait for an entry, by the word of its key: see `MOMENTS`.
        self.armed: dict[str, str] = {}
        self._more = dict(armed or {})
        self.now = 0.0
        self.coordinator, self.restarted_s = 0, float("-inf")
        self.store: dict[str, bytes] = {}
        self.sessions: dict[int, Session] = {}
        self.lives = collections.Counter[int]()
        self.processes: dict[int, Process] = {}
        self.waiting: dict[str, list[Callable[[], None]]] = {}
        self.log: list[str] = []
        self.all: list[Process] = []
        # The processes that have told in time that they have the state.
        self.level: set[Process] = set()
        self.longest_wait_s = 0.0
        self.returns = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self) -> None:
        """Runs the job, and checks the rules at the end.

        Raises:
          AssertionError: a rule is broken; the text has the seed, and what happened.
        """
        try:
            self._run()
        except Exception as error:
            lines = "\n".join(self.log[-60:])
            raise AssertionError(f"seed {self.seed}: {error!r}\n{lines}") from error

    def _run(self) -> None:
        if self.replicas:
            for rank in range(self.ranks):
                self._start(rank)
        else:
            self._begin_with_all()
        when = 1.0
        for _ in range(self.faults):
            when += self.random.expovariate(1 / self.pace_s)
            self.at(when, self._fault)
        self.at(self.random.uniform(0.0, 20.0), lambda: self.armed.update(self._more))
        when += LAST_S
        self.at(when, self._end_faults)
        settled_s = None
        # A replica that joins again, and those that it leaves, wait for signs of life.
        settle_s = (4 if self.replicas else 2) * SETTLE_S
        while self.now < when + settle_s and (
            settled_s is None or self.now < settled_s + REST_S
        ):
            self.now, _, action = heapq.heappop(self._events)
            action()
            if settled_s is None and self.now > when and self._settled():
                settled_s = self.now
        self._check_end()

    def _begin_with_all(self):
        members = {rank: plans.Member(1, 0) for rank in range(self.ranks)}
        session = self.sessions[0] = Session(0, {}, state=())
        self.store[f"{plans.NEWS}/session/0"] = b"1"
        for rank in range(self.ranks):
            process = self._new(rank)
            process.session, process.state = session, ()
            session.members[rank], session.calls[rank] = process, -1
            process.part = agreement.Agreement(
                World(self, process), rank, process.life, self.ranks, 1, 0, members
            )
            self._begin(process)

    def _settled(self):
        """Whether all processes are members of one session, and none wants to be."""
        sessions = {
            p.session if p.alive and p.stopped_s is None and p.cut_s is None else None
            for p in self.processes.values()
        }
        if len(sessions) > 1 or None in sessions:
            return False
        (session,) = sessions
        ranks, present = self.processes.keys(), self.processes.values()
        if session.members.keys() - session.removed != ranks:
            return False
        if any(session.gone(self.now, p) & ranks for p in present):
            return False
        if any(p.joins or session.calls[p.rank] < 0 for p in present):
            return False
        return not any(plans.wish_key(p.rank, p.life) in self.store for p in present)

    def at(self, when, action):
        heapq.heappush(self._events, (when, next(self._order), action))

    # ---- Processes.

    def _new(self, rank):
        self.lives[rank] += 1
        life = self.lives[rank]
        process = self.processes[rank] = Process(rank, life)
        key, value = f"{plans.NEWS}/lives/{rank}", str(life).encode()
        self.store[key] = process.news[key] = value
        process.coordinator = self.coordinator
        self.all.append(process)
        return process

    def _begin(self, process):
        """Starts the two tasks of a member."""
        self.start(process, self._follow(process))
        self.start(process, self._train(process))

    def _start_again(self, rank):
        before = self.processes.get(rank)
        if before is not None and (not before.alive or before.stopped_s is not None):
            self._start(rank)

    def _start(self, rank):
        process = self._new(rank)
        self.note(process, "starts")
        process.part = agreement.Agreement(
            World(self, process),
            rank,
            process.life,
            self.least,
            1,
            plans.News(self._news()).newest(),
            {},
            replicas=self.replicas,
        )
        self.start(process, self._come_back(process))

    def _news(self):
        start = plans.NEWS + "/"
        return {
            k[len(start) :]: v for k, v in self.store.items() if k.startswith(start)
        }

    async def _come_back(self, process):
        process.joins = True
        await _suspend(("sleep", self.random.uniform(0.5, 2.0)))
        process.own = (process.state, process.step)
        self.start(process, self._follow(process))
        try:
            limit_s = 10 * SETTLE_S if self.replicas else 60.0
            got = await process.part.come_back(limit_s, process.step)
        except (RendezvousError, plans.ReplacedError) as error:
            raise ProcessError(str(error)) from error
        self.note(process, f"is back in session {process.session.number}: {got}")
        assert process.state == process.session.state, "another state than the others"
        level = process in self.level
        assert level or not got, "the others have not waited"
        self.returns += 1
        process.joins = False
        self.start(process, self._train(process))

    async def _follow(self, process):
        joined = process.joined
        while True:
            await _suspend(("sleep", 0.2))
            if process.joined > joined:
                return
            try:
                await process.part.poll()
            except plans.ReplacedError as error:
                self.end(process, str(error))
                return

    async def _train(self, process):
        part, rank = process.part, process.rank
        while True:
            session = process.session
            more_s = min(self.step_s, 1.0) * self.random.uniform(-0.2, 0.3)
            await _suspend(("sleep", self.step_s + more_s))
            try:
                await self._call(process, session)
            except ProcessError as error:
                if not self.replicas:
                    raise
                await self._join_again(process, str(error))
                return
            process.step += 1
            begun_s = self.now
            coming = await part.admit(lambda s=session: s.calls[rank])
            if coming is not None:
                failed = await part.begin(coming)
                self.note(
                    process,
                    f"moved to session {coming.plan.number} with "
                    f"{list(coming.plan.newcomers)} at {session.calls[rank]}; {failed}",
                )
            if process.disturbed_s < begun_s:
                self._check_wait(process, coming, self.now - begun_s)

    async def _join_again(self, process, why):
        """Does what a program of a replica does after the error of a call."""
        self.note(process, f"joins again: {why}")
        process.joins = True
        process.joined += 1
        # Its thread ends first.
        await _suspend(("sleep", 2 * agreement.OPEN_S))
        if process.part.coming is not None:
            process.part._world.close(process.part.coming.opened)
        process.part.withdraw()
        await process.part.signs.end()
        process.own = (process.state, process.step)
        process.part._world.leave("it joins again")
        self.start(process, self._come_back(process))

    async def _call(self, process, session):
        """Makes the calls of a step, as `bounded` ones."""
        rank, end = process.rank, self.now + CALL_TIMEOUT_S
        while not session.update(self.now, process):
            await _suspend(("sleep", 0.1))
            if self.now >= end:
                raise ProcessError("no majority")
        if rank in session.removed:
            raise ProcessError("the others have removed this rank")
        # A rank that is behind skips the calls of the others.
        call = max(session.calls[rank] + self.calls_per_step, session.newest)
        session.calls[rank] = call
        session.newest = max(session.newest, call)

    def _check_wait(self, process, coming, waited_s):
        self.longest_wait_s = max(self.longest_wait_s, waited_s)
        limit_s = agreement.DECIDE_S + SLACK_S
        if coming is not None:
            state_s = 2 * self.state_bytes / agreement.LEVEL_BYTES_PER_S * self.ranks
            limit_s += 3 * PEER_TIMEOUT_S + 3 * agreement.LEVEL_S + state_s
        assert waited_s <= limit_s, f"rank {process.rank} has waited for {waited_s} s"

    def begun_anew(self, new):
        """Checks that no process is left that trains, and has not been disturbed."""
        awake_s = self.now - 2 * agreement.OPEN_S
        if new.number < plans.News(self._news()).newest():
            return  # One that was stopped for long: it ends with an error.
        for process in self.processes.values():
            session = process.session
            if session in (None, new) or process.joins or process.disturbed_s > awake_s:
                continue
            live = session.members.keys() - session.removed
            gone = session.gone(self.now, process) & live
            trains = process.alive and process.stopped_s is None
            trains = trains and process.rank in live and 2 * len(gone) < len(live)
            assert not trains, f"rank {process.rank} is left, and trains"

    def transfer_s(self):
        return (
            self.random.uniform(0.3, 1.3)
            * self.state_bytes
            / agreement.LEVEL_BYTES_PER_S
        )

    def drained(self, session):
        ends = {c for r, c in session.draining.items() if r not in session.removed}
        assert len(ends) <= 1, f"ranks drain at different calls: {session.draining}"

    def end(self, process, why):
        """Ends a process with an error; it is started again."""
        self.note(process, f"ends: {why}")
        self._die(process)
        if self.processes.get(process.rank) is process:
            delay_s = self.random.uniform(0.5, 3.0)
            self.at(self.now + delay_s, lambda: self._start_again(process.rank))

    def _die(self, process):
        process.alive = False
        process.stopped_s = self.now
        if process.session is not None and self.random.random() < 0.3:
            process.session.left.add(process.rank)  # It could say so.

    # ---- Faults.

    def _fault(self):
        """A fault comes now, or at the next entry of some kind."""
        kinds = REPLICA_KINDS if self.replicas else KINDS
        kind = self.random.choice(kinds)
        if self.random.random() < 0.5:
            self.armed[self.random.choice(MOMENTS)] = kind
            return
        alive = [p for p in self.processes.values() if p.alive and p.stopped_s is None]
        count = min(len(alive), 2 if kind == "kill two" else 1)
        for process in self.random.sample(alive, count):
            self._strike(kind, process)

    def _end_faults(self):
        self.armed.clear()
        self.slow = 0.0

    def _strike(self, kind, process):
        """A fault comes to a process, or to the coordinator."""
        if not process.alive or process.stopped_s is not None:
            return
        self.note(process, kind)
        away_s = self.random.uniform(0.1, 3 * PEER_TIMEOUT_S)
        if self.random.random() < 0.2:
            away_s *= 10
        if kind == "restart":
            self._restart_coordinator()
        elif kind == "leave" and len(self.processes) > self.least:
            del self.processes[process.rank]
            for each in self.all:
                if each.rank == process.rank and each.alive:
                    self._die(each)
        elif kind == "cut":
            process.cut_s = self.now
            self.at(self.now + away_s, lambda: self._mend(process))
        elif kind in ("stop", "replace"):
            process.stopped_s = process.disturbed_s = self.now
            self.at(self.now + away_s, lambda: self._wake(process))
            if kind == "replace":
                when = self.now + self.random.uniform(0.1, away_s)
                self.at(when, lambda: self._replace(process))
        else:
            self.end(process, "killed")

    def _restart_coordinator(self):
        self.coordinator += 1
        self.restarted_s = self.now
        self.store.clear()
        # Processes that wait for an entry notice it at once.
        waiting, self.waiting = self.waiting, {}
        for look in itertools.chain(*waiting.values()):
            self.at(self.now + self.random.expovariate(1 / self.latency_s), look)

    def _mend(self, process):
        process.cut_s = None
        process.disturbed_s = self.now

    def _replace(self, process):
        if (
            process.alive
            and process.stopped_s
            and self.processes.get(process.rank) is process
        ):
            self._start_again(process.rank)

    def _wake(self, process):
        if process.alive and process.stopped_s is not None:
            self.note(process, "wakes")
            process.stopped_s, process.disturbed_s = None, self.now
            deferred, process.deferred = process.deferred, []
            for resume in deferred:
                self.at(self.now, resume)

    # ---- Tasks.

    def start(self, process: Process, task: Coroutine[Any, Any, None]) -> None:
        """Starts a task of a process."""
        self.at(self.now, lambda: self._resume(process, task, None))

    def _resume(self, process, task, value):
        if not process.alive:
            return
        if process.stopped_s is not None:
            process.deferred.append(lambda: self._resume(process, task, value))
            return
        try:
            request = task.send(value)
        except StopIteration:
            return
        except ProcessError as error:
            self.end(process, str(error))
            return
        kind, *rest = request
        if kind == "sleep":
            self.at(self.now + rest[0], lambda: self._resume(process, task, None))
        elif kind == "request":
            self._request(process, task, rest[0])
        else:
            self._wait(process, task, *rest)

    def _request(self, process, task, action):
        there_s = self.random.expovariate(1 / self.latency_s)
        back_s = self.random.expovariate(1 / self.latency_s)
        if self.random.random() < self.slow:
            there_s += self.random.uniform(0.0, 3.0)
            back_s += self.random.uniform(0.0, 3.0)
            process.disturbed_s = max(process.disturbed_s, self.now + there_s + back_s)

        def act():
            self._enter_news(process)
            result = action(self.store)
            self.at(self.now + back_s, lambda: self._resume(process, task, result))

        self.at(self.now + there_s, act)

    def _enter_news(self, process):
        """Enters what a process knows into a coordinator that was started again."""
        if process.coordinator < self.coordinator:
            process.coordinator = self.coordinator
            for key, value in process.news.items():
                known = int(self.store.get(key, 0))
                self.store[key] = str(max(known, int(value))).encode()

    def _wait(self, process, task, key, limit_s):
        end_s, ended = self.now + limit_s, False

        def look():
            nonlocal ended
            if ended:
                return
            if process.alive and process.stopped_s is None:
                self._enter_news(process)
            found = self.store.get(key)
            if found is None and self.now < end_s:
                self.waiting.setdefault(key, []).append(look)
                self.at(end_s, look)
                return
            ended = True
            delay_s = self.random.expovariate(1 / self.latency_s)
            self.at(self.now + delay_s, lambda: self._resume(process, task, found))

        look()

    def set(self, process, key, value):
        """Makes an entry of a process."""
        self.store[key] = value
        fault = self.armed.pop(key.split("/")[2], None)
        if fault is not None:
            delay_s = self.random.choice((0.0, self.random.expovariate(20.0)))
            self.at(self.now + delay_s, lambda: self._strike(fault, process))
        for resume in self.waiting.pop(key, ()):
            resume()
        rest = key.split("/")[2:]
        if rest[:1] == ["level"] and value == b"1":
            session = process.session
            survivors = session.calls.keys() - set(session.newcomers)
            if all(session.calls[rank] < 0 for rank in survivors):
                self.level.add(process)
            else:
                self.level.discard(process)

    def note(self, process, line):
        """Logs a line."""
        self.log.append(f"{self.now:8.3f} {process.rank}.{process.life} {line}")

    def _check_end(self) -> None:
        """All ranks are in one session, and nothing remains of the earlier ones."""
        now = list(self.processes.values())
        awake_s = self.now - 3 * agreement.OPEN_S
        awake = [p for p in self.all if p.alive and p.stopped_s is None]
        older = [p for p in awake if p not in now and p.disturbed_s < awake_s]
        assert not older, f"these were replaced, and run: {older}"
        assert all(p.alive and p.stopped_s is None for p in now), "a rank is away"
        numbers = [p.session and p.session.number for p in now]
        assert len(set(numbers)) == 1, f"sessions {numbers}"
        assert None not in numbers, "no session has begun"
        (session,) = {p.session for p in now}
        assert len(session.members.keys() - session.removed) == len(now), "empty places"
        assert len({p.state for p in now}) == 1, "different states"
        calls = [session.calls[p.rank] for p in now]
        behind = max(calls) - min(calls)
        assert behind <= 3 * self.calls_per_step, "a rank is behind"
        oldest = session.number
        if len(now) < self.ranks:
            # One that has left has removed nothing: the next session does.
            oldest = min(plans.News(self._news()).sessions)
        left = [
            key
            for key in self.store
            if not key.startswith(plans.NEWS) and int(key.split("/")[1]) < oldest
        ]
        # A process that wakes may make an entry of an earlier plan.
        most = (2 + self.ranks) * (1 + self.faults)
        assert len(left) <= most, f"left: {sorted(left)}"
        wishes = [key for key in self.store if "/wishes/" in key]
        # One that was deleted may be entered into a new coordinator again.
        again = self.ranks * self.coordinator
        assert len(wishes) <= self.faults + again, f"left: {wishes}"


def main() -> None:
    """Runs many seeds, and prints those that fail."""
    parser = argparse.ArgumentParser(description="Ranks come back in virtual time.")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--replicas", action="store_true")
    given = parser.parse_args()
    failed = back = 0
    for seed in range(given.seed, given.seed + given.count):
        simulation = Simulation(seed, replicas=given.replicas)
        try:
            simulation.run()
        except AssertionError as error:
            failed += 1
            print(error)
        back += simulation.returns
    print(f"{given.count - failed} of {given.count} runs passed, {back} returns")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
