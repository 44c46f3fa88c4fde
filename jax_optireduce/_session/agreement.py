"""The agreement of processes on the next session: its members, and when it begins.

Pure: a process reaches the others, its session and the time through a `World`. In a
process every `await` blocks; in a simulation others act, or die, in that moment.

A plan that fails changes nothing: a member or a newcomer that dies, or does not answer,
ends it by the decision. Programs wait in two places only, each with a bound: for the
decision, and for the state of those that come back.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jax_optireduce._errors import RendezvousError
from jax_optireduce._session.life_signs import LifeSigns
from jax_optireduce._session.plans import (
    NEWS,
    SETTLED_S,
    Coming,
    Member,
    News,
    Plan,
    PlanError,
    ReplacedError,
    World,
    key,
    sign_key,
    step_key,
    wish_key,
)

# Longest opening of a session by one process, and longest wait for the others
# afterwards, in seconds. Chosen: twice the proof of the paths. All processes run
# already.
OPEN_S = 10.0

# Longest wait of a program for the decision, in seconds. Chosen: the others tell their
# calls at the end of the same step.
DECIDE_S = 2.0

# Longest wait of all members for the state of those that return, in seconds: for its
# first bytes, and then this and one more for so many bytes. Chosen: a start, and a link
# of 1 Gbit/s that is half busy.
LEVEL_S = 3.0
LEVEL_BYTES_PER_S = 60e6

# Time after which another member proposes a plan, if the one before has not, in
# seconds. Chosen: several polls.
_TURN_S = 1.0

# Time without a plan after one that has failed, in seconds. Chosen: the cause, such as
# a program in a long pause, lasts for a while, and a plan may cost `DECIDE_S`.
_PAUSE_S = 5.0

# Period in which a wait looks for the reasons to end it, in seconds. Chosen: a few
# requests per second.
_SLICE_S = 0.5

# Period in which a process that comes back looks for a plan, in seconds. Chosen: a part
# of the start of a process.
_SEEK_S = 0.2

# Time without a plan after which a process that comes back raises the number of its
# attempt, in seconds. Chosen: longer than a plan.
_RENEW_S = 4 * OPEN_S

# Time without a plan after which the next process begins the job anew, if the one
# before has not, in seconds. Chosen: longer than a plan that fails, and `_PAUSE_S`.
_LEAD_S = 2 * OPEN_S

# Period in which a process that comes back tells that it waits, in seconds. Source: the
# default of `stall_timeout_s`.
_TELL_S = 60.0

# The entry of a process that has the state.
_LEVEL = b"1"


class Agreement:
    """The part of one process in sessions that follow each other.

    Attributes:
      rank: its place.
      life: its number there.
      running: number of its session; of a process that comes back: of the newest one
        that has begun.
      coming: the session that it has opened beside it.
      signs: of life, of a replica.
    """

    def __init__(
        self,
        world: World,
        rank: int,
        life: int,
        least: int,
        per_slice: int,
        running: int,
        members: Mapping[int, Member],
        *,
        replicas: bool = False,
    ) -> None:
        """Takes part from session `running` on; without `members` it comes back.

        Args:
          world: see there.
          rank: the place of the process.
          life: its number there.
          least: number of processes with which a job begins.
          per_slice: processes of a slice.
          running: see the attribute.
          members: of that session, by rank.
          replicas: whether any number of ranks may be members. A member then shows
            that it lives, since a job that begins anew need not have all of its ranks.
        """
        self._world = world
        self.rank = rank
        self.life = life
        self.running = running
        self.coming: Coming | None = None
        self._least = least
        self._replicas = replicas
        self._per_slice = per_slice
        self._members = dict(members)
        # The newest plan that has begun or failed.
        self._passed = running
        self._attempt = 0
        # Wishes that did not come true: of processes that may be dead.
        self._refused: dict[int, Member] = {}
        self._removed: set[int] = set()
        # When this process has seen the wish of each place first.
        self._seen_s: dict[int, float] = {}
        self._pause_end_s = float("-inf")
        # When this process has begun to look for plans, or has seen the last one.
        self._quiet_s = 0.0
        # Whether this process comes back, and when it tells next that it waits.
        self._joins, self._tell_s = False, float("inf")
        self.signs = LifeSigns(world, rank, life)
        # The plan of the running session, while this process is in the one before, too.
        self._retiring: Plan | None = None

    # ---- A member, beside its program.

    async def poll(self) -> None:
        """Looks for wishes and plans, and takes part; to be called again and again.

        Raises:
          ReplacedError: another process has the place of this one.
        """
        await self.signs.renew()
        news = await self._news()
        self._check_life(news)
        if self._joins or not self._members:
            return  # The program waits for its place, or has not got one.
        self._check_part(news)
        if self._retiring is not None:
            await self._retire(self._retiring)
            return  # A sign of life is due, and the news are old.
        self._remove_replaced(news.lives)
        coming = self.coming
        if coming is not None:
            # Otherwise the program is about to begin it.
            if coming.given_up:
                why = "its program has not found the decision."
                self._abandon(coming.plan, coming.opened, why)
            return
        plan = await self._plan(news) or await self._proposed(news)
        if plan is not None:
            await self._prepare(plan)

    def _check_life(self, news: News) -> None:
        """Raises `ReplacedError` if another process has the place of this one."""
        life = news.lives.get(self.rank, self.life)
        if life > self.life:
            raise ReplacedError(
                f"life {self.life} was replaced by life {life} of its rank"
            )

    def _check_part(self, news: News) -> None:
        """Raises `ReplacedError` if the others have gone on without this process."""
        newest, coming = news.newest(), self.coming
        begins = self.running if coming is None else coming.plan.number
        if self._replicas and newest > begins:
            raise ReplacedError(
                f"the others went on in session {newest} without this process"
            )

    def _remove_replaced(self, lives: Mapping[int, int]) -> None:
        """Removes members whose places have other processes: no call waits for them."""
        for rank, member in self._members.items():
            life = lives.get(rank, member.life)
            if life > member.life and rank not in self._removed:
                self._removed.add(rank)
                self._world.remove(rank, f"life {life} takes its place")

    async def _retire(self, plan: Plan) -> None:
        """Leaves the session before, in which others may be in their last step."""
        end = self._world.now() + OPEN_S
        for rank in plan.survivors():
            left_s = max(0.0, end - self._world.now())
            await self._world.wait(key(plan.number, "moved", rank), left_s)
        self._world.retire()
        self._retiring = None

    async def _plan(self, news: News) -> Plan | None:
        """Returns the newest plan, unless it has begun or failed."""
        if news.plan <= self._passed:
            return None
        entry = await self._world.entry(key(news.plan, "plan"))
        if entry is None:
            self._passed = news.plan  # The coordinator was started again.
            return None
        self._quiet_s = self._world.now()
        return Plan.decoded(entry)

    async def _proposed(self, news: News) -> Plan | None:
        """Proposes a plan if it is the turn of this rank; returns the plan in force."""
        wishes = self._open_wishes(news)
        now = self._world.now()
        self._seen_s = {rank: self._seen_s.get(rank, now) for rank in wishes}
        if not wishes or now < self._pause_end_s:
            return None
        silent = self._world.silent_ranks()
        live = [r for r in self._members if r not in silent and r not in wishes]
        majority = 2 * len(live) > self._world.live_processes()
        if not majority or self.rank not in live:
            return None  # The others may go on without these.
        if now < min(self._seen_s.values()) + live.index(self.rank) * _TURN_S:
            return None
        members = {rank: self._members[rank] for rank in live} | wishes
        return await self._propose(members, sorted(wishes))

    async def _propose(
        self, members: Mapping[int, Member], newcomers: Sequence[int]
    ) -> Plan:
        """Proposes a plan; returns the one in force."""
        plan = Plan(
            number=self._passed + 1,
            proposer=self.rank,
            members=dict(sorted(members.items())),
            newcomers=newcomers,
            per_slice=self._per_slice,
        )
        entry = await self._world.claim(key(plan.number, "plan"), plan.encoded())
        await self._world.publish(f"{NEWS}/plan", str(plan.number).encode())
        return Plan.decoded(entry)

    def _open_wishes(self, news: News) -> dict[int, Member]:
        """Returns the processes that want to come back."""
        none = Member(0, 0)
        wishes = {}
        for rank, life in news.lives.items():
            # A process that has died since may have been started again.
            attempt = news.wishes.get((rank, life), 0)
            known = max(self._members.get(rank, none), self._refused.get(rank, none))
            if attempt and Member(life, attempt) > known:
                wishes[rank] = Member(life, attempt)
        return wishes

    async def _prepare(self, plan: Plan) -> None:
        """Takes part in a plan of the others."""
        own = plan.members.get(self.rank)
        # A member that was stopped may have an old wish.
        if own != self._members[self.rank] or self.rank in plan.newcomers:
            self._pass_by(plan)
            self._world.log(
                f"the others prepare session {plan.number} without this process, rank "
                f"{self.rank}, which they have not heard."
            )
            return
        await self._agree(plan)

    async def _agree(self, plan: Plan) -> Coming | None:
        """Opens the session of a plan, and agrees on the call at which it begins.

        Returns:
          The session; None if it does not begin.
        """
        opened = coming = None
        try:
            await self._check(plan)
            opened = await self._world.open(plan)
            await self._await_open(plan)
            coming = Coming(plan, opened)
            # From now on the program of a member stops.
            self.coming = None if self._joins else coming
            if self.rank == plan.proposer:
                await self._decide(plan, {"call": await self._first_call(plan)})
            decision = json.loads(await self._await(plan, "decision"))
        except PlanError as error:
            decision = await self._decide_failure(plan, str(error))
        if "call" in decision and coming is not None:
            coming.begins = decision["call"]
            return coming
        # A decision of the others to begin came during the error of this process.
        why = decision.get("abandoned", "the others begin it without this process.")
        self._abandon(plan, opened, why)
        return None

    async def _first_call(self, plan: Plan) -> int:
        """Returns the call at which no program of a member has passed its stop."""
        if self._joins:
            return 0  # The job begins anew.
        stops = await self._gather(plan, "stop", plan.survivors())
        return max(map(int, stops.values()))

    def _pass_by(self, plan: Plan) -> None:
        """Leaves a plan to the others, who may make no signs while they open it."""
        self._passed = plan.number
        self._pause_end_s = self._world.now() + _LEAD_S

    def _abandon(self, plan: Plan, opened: Any, why: str) -> None:
        """Ends a plan that has failed."""
        self.coming = None
        if opened is not None:
            self._world.close(opened)
        self._passed = plan.number
        self._pause_end_s = self._world.now() + _PAUSE_S
        self._refused |= plan.members
        names = ", ".join(map(str, plan.newcomers or plan.members))
        goes_on = "" if self._joins else " Training goes on as before."
        self._world.log(
            f"session {plan.number}, with rank {names}, does not begin: {why}{goes_on}"
        )

    async def _news(self) -> News:
        return News(await self._world.entries(NEWS))

    # ---- Waits in a plan.

    async def _await_open(self, plan: Plan) -> None:
        """Tells that this process has opened the session, and waits for the others."""
        await self._world.publish(key(plan.number, "ready", self.rank), b"1")
        if self.rank == plan.proposer:
            await self._gather(plan, "ready", plan.members, OPEN_S)
            await self._world.publish(key(plan.number, "open"), b"1")
        else:
            await self._await(plan, "open", limit_s=3 * OPEN_S)

    async def _decide(self, plan: Plan, decision: Mapping[str, Any]) -> dict[str, Any]:
        """Decides, unless it is decided; returns the decision in force."""
        entry = json.dumps(decision).encode()
        return json.loads(await self._world.claim(key(plan.number, "decision"), entry))

    async def _decide_failure(self, plan: Plan, why: str) -> dict[str, Any]:
        """Decides that a plan fails, unless it is decided; returns the decision."""
        if await self._world.entry(key(plan.number, "plan")) != plan.encoded():
            return {"abandoned": why}
        return await self._decide(plan, {"abandoned": why})

    async def _gather(
        self, plan: Plan, name: str, ranks: Iterable[int], limit_s: float | None = None
    ) -> dict[int, bytes]:
        """Returns the entries of this name of these ranks, see `_await`."""
        end = None if limit_s is None else self._world.now() + limit_s
        found = {}
        for rank in ranks:
            left_s = None if end is None else max(0.0, end - self._world.now())
            found[rank] = await self._await(plan, name, rank, limit_s=left_s)
        return found

    async def _await(
        self, plan: Plan, *name: object, limit_s: float | None = None
    ) -> bytes:
        """Waits for an entry of a plan.

        Without a limit it waits for programs, none of which waits without one.

        Raises:
          PlanError: it was not made in time, or will not be.
        """
        end = self._world.now() + (float("inf") if limit_s is None else limit_s)
        while True:
            left_s = max(0.0, end - self._world.now())
            found = await self._world.wait(
                key(plan.number, *name), min(left_s, _SLICE_S)
            )
            if found is not None:
                return found
            await self.signs.renew()
            await self._check(plan)
            if self._joins and limit_s is None:
                self._check_left(plan, [plan.proposer], await self._news())
            if self._world.now() >= end:
                text = " ".join(map(str, name))
                raise PlanError(f"{text!r} was not entered within {limit_s:g} s.")

    async def _check_entry(self, plan: Plan) -> None:
        """Raises `PlanError` if a plan is not the one of its number.

        Entries of earlier sessions are deleted, and all entries with the coordinator.
        """
        if await self._world.entry(key(plan.number, "plan")) != plan.encoded():
            raise PlanError("its entries are gone.")

    async def _check(self, plan: Plan) -> None:
        """Looks whether a plan may succeed yet.

        Raises:
          PlanError: it does not.
        """
        if self._world.over():
            raise PlanError(f"the program of rank {self.rank} has ended.")
        await self._check_entry(plan)
        decided = await self._world.entry(key(plan.number, "decision"))
        if decided is not None and "abandoned" in json.loads(decided):
            raise PlanError(json.loads(decided)["abandoned"])
        lives = (await self._news()).lives
        for rank, member in plan.members.items():
            if lives.get(rank, member.life) > member.life:
                raise PlanError(f"rank {rank} was started again.")

    def _check_left(self, plan: Plan, ranks: Sequence[int], news: News) -> None:
        """Raises `PlanError` if none of these members of a plan is left."""
        live = self.signs.live(news)
        for rank in ranks:
            member = plan.members[rank]
            shown = not self._replicas or (rank, member.life) in live
            # Replicas may have joined again.
            if shown and news.process_of(rank) <= member:
                return
        raise PlanError(f"none is left of ranks {list(ranks)}.")

    # ---- The program of a member.

    async def admit(self, newest_call: Callable[[], int]) -> Coming | None:
        """Returns the session that begins here, if one does; between two steps.

        Args:
          newest_call: returns the largest number of a call that has ended. It is equal
            on all ranks after the same step, also of a rank that has skipped some.
        """
        coming = self.coming
        if coming is None or coming.given_up:
            return None
        if coming.plan.survivors() == [self.rank]:
            return await self._admit_alone(coming)
        call = newest_call()
        if coming.stop is None:
            coming.stop = call + 1
            stop = key(coming.plan.number, "stop", self.rank)
            await self._world.publish(stop, str(coming.stop).encode())
            return None
        if call < coming.stop:
            return None  # The program has called none in this step.
        begins = await self._begins(coming)
        return coming if begins is not None and call >= begins else None

    async def _admit_alone(self, coming: Coming) -> Coming | None:
        """Does the same without calls, of which a lone process may have none."""
        if coming.stop is None:
            coming.stop = 0
            await self._world.publish(key(coming.plan.number, "stop", self.rank), b"0")
        return coming if await self._begins(coming) is not None else None

    async def _begins(self, coming: Coming) -> int | None:
        """Returns the call of the decision; None if the program gives up the plan."""
        if coming.begins is None:
            decision = await self._decision_in_time(coming.plan)
            # The thread may have found it in a coordinator that has ended since.
            if coming.begins is None:
                coming.begins = decision.get("call")
            coming.given_up = coming.begins is None
        return coming.begins

    async def _decision_in_time(self, plan: Plan) -> dict[str, Any]:
        """Returns the decision, for which the program waits."""
        found = await self._world.wait(key(plan.number, "decision"), DECIDE_S)
        if found is not None:
            return json.loads(found)
        why = f"the program of some rank has not called admit for {DECIDE_S:g} s."
        return await self._decide_failure(plan, why)

    async def _enter(self, coming: Coming) -> None:
        """Continues in a session."""
        plan = coming.plan
        await self._world.move(coming)
        self._members = dict(plan.members)
        self._removed = set()
        self._passed = plan.number
        self.running = plan.number
        self._retiring = plan
        self.coming = None
        await self._world.publish(key(plan.number, "moved", self.rank), b"1")
        await self._world.publish(f"{NEWS}/session/{plan.number}", b"1")
        if self.rank == plan.proposer:
            await self._forget_before(plan.number)

    def withdraw(self) -> None:
        """Takes part in no session from now on, to come back to one."""
        silent = self._world.silent_ranks()
        members = self._members.items()
        self.signs.look_anew((r, of.life) for r, of in members if r in silent)
        self.coming = None
        self._retiring = None
        self._members = {}
        self._removed = set()

    async def _forget_before(self, last: int) -> None:
        """Removes the entries of earlier sessions, plans and lives."""
        news = await self._news()
        begun = [number for number in news.sessions if number < last]
        for number in range(begun[0] if begun else 0, last):
            await self._world.forget(key(number))
        # Last: should this process die before, the next one begins there.
        for number in begun:
            await self._world.forget(f"{NEWS}/session/{number}")
        for rank, life in news.signs:
            if rank not in self._members or life < self._members[rank].life:
                await self._world.forget(sign_key(rank, life))
        for rank, life in news.wishes:
            if life < news.lives.get(rank, life):
                await self._world.forget(wish_key(rank, life))

    async def begin(self, coming: Coming) -> dict[int, str]:
        """Continues in the session that begins, and waits for those that come back.

        Returns:
          Why each rank that has not got the state has not.
        """
        plan = coming.plan
        await self._enter(coming)
        return await self._give(plan)

    async def _give(self, plan: Plan) -> dict[int, str]:
        """Gives the state, as the source, and waits for those that come back."""
        own = str(self.rank).encode()
        if await self._world.claim(key(plan.number, "source"), own) == own:
            await self._world.serve(plan)
        return await self._await_level(plan)

    async def _await_level(self, plan: Plan) -> dict[int, str]:
        entry = await self._world.wait(key(plan.number, "state"), LEVEL_S)
        size_bytes = 0 if entry is None else json.loads(entry)["bytes"]
        limit_s = LEVEL_S + size_bytes * len(plan.newcomers) / LEVEL_BYTES_PER_S
        end = self._world.now() + (0.0 if entry is None else limit_s)
        failed = {}
        for rank in plan.newcomers:
            own = key(plan.number, "level", rank)
            left_s = max(0.0, end - self._world.now())
            level = await self._world.wait(own, left_s)
            if level is None:
                # From now on the state that it gets is too old.
                level = await self._world.claim(own, b"it took too long.")
            if level != _LEVEL:
                failed[rank] = level.decode()
        return failed

    async def announce_end(self) -> None:
        """Tells processes that come back that the program has ended."""
        live = str(self._world.live_processes()).encode()
        await self._world.publish(key(self.running, "ended", self.rank), live)

    # ---- A process that comes back.

    async def come_back(self, limit_s: float | None, step: int = 0) -> bool:
        """Takes the place of an earlier life.

        Args:
          limit_s: longest wait, in seconds; None: unlimited.
          step: of the state of this process. Replicas that begin anew take the state of
            the one with the largest step.

        Returns:
          Whether it got the state of the others; otherwise the whole job begins anew.

        Raises:
          RendezvousError: the others have not admitted this process in time, or have
            ended.
        """
        self._joins = True
        self._quiet_s = self._world.now()
        self._tell_s = self._quiet_s + _TELL_S
        try:
            return await self._come_back(limit_s, step)
        finally:
            self._joins = False

    async def _come_back(self, limit_s: float | None, step: int) -> bool:
        end = self._world.now() + (float("inf") if limit_s is None else limit_s)
        wish = wish_key(self.rank, self.life)
        failed = 0
        while True:
            self._attempt += 1
            await self._world.publish(step_key(self.rank), str(step).encode())
            await self._world.publish(wish, str(self._attempt).encode())
            coming = await self._admitted(end)
            if coming is None:
                continue
            plan = coming.plan
            await self._enter(coming)
            if self.rank not in plan.newcomers:
                await self._give(plan)
            else:
                try:
                    await self._receive(plan)
                except Exception as error:
                    await self._level(plan, str(error).encode())
                    self._world.leave(str(error))
                    self._members = {}
                    await self.signs.end()
                    if not isinstance(error, PlanError):
                        raise
                    self._world.log(f"{error} This process tries again.")
                    # The others wait for each state.
                    failed += 1
                    await self._world.sleep(failed * _PAUSE_S)
                    continue
            await self._world.forget(wish)
            return self.rank in plan.newcomers

    async def _admitted(self, end: float) -> Coming | None:
        """Waits until a session with this process begins; None if it does not."""
        plan = await self._await_plan(end)
        if plan is None:
            return None
        if self._replicas:
            await self.signs.begin()
        coming = await self._agree(plan)
        if coming is None:
            await self.signs.end()
        return coming

    async def _await_plan(self, end: float) -> Plan | None:
        """Returns the next plan with this attempt of this process; None: try again."""
        own = Member(self.life, self._attempt)
        renew_s = self._world.now() + _RENEW_S
        while True:
            news = await self._news()
            self._check_life(news)
            if self._world.now() >= self._tell_s:
                self._tell_s += _TELL_S
                self._world.log(
                    f"rank {self.rank}, life {self.life}, waits for the others to "
                    f"admit it. {len(self._open_wishes(news))} processes wait; a job "
                    f"begins with {self._least}."
                )
            # The entries of earlier plans are deleted.
            self.running = news.newest()
            self._passed = max(self._passed, self.running)
            before = self._passed
            plan = await self._plan(news)
            if plan is None and (self._passed > before or self._world.now() >= renew_s):
                return None  # The others may take its wish for one of a failed plan.
            plan = plan or await self._anew(news)
            if plan is not None and plan.members.get(self.rank) == own:
                return plan
            if plan is not None:
                self._pass_by(plan)
                await self.signs.end()
                continue
            await self._check_running()
            if self._world.now() >= end or self._world.over():
                raise RendezvousError(
                    f"rank {self.rank} was not admitted by the others. Their programs "
                    "must call admit(state, step) in their loops, and more than half "
                    "of the ranks must run."
                )
            await self._world.sleep(_SEEK_S)

    async def _check_running(self) -> None:
        """Raises if the programs of most live members have ended."""
        ended = await self._world.entries(key(self.running, "ended"))
        if ended and 2 * len(ended) > min(map(int, ended.values())):
            raise RendezvousError(
                f"rank {self.rank} comes back too late: the programs of the others "
                "have ended."
            )

    async def _anew(self, news: News) -> Plan | None:
        """Proposes to begin anew, if no process is left that has been in a session."""
        wishes = self._open_wishes(news)
        left = self.signs.live(news) or await self._world.age_s() < SETTLED_S
        if left or len(wishes) < self._least or self.rank not in wishes:
            return None
        # The processes before this one may have died.
        turn_s = self._quiet_s + sorted(wishes).index(self.rank) * _LEAD_S
        if self._world.now() < max(turn_s, self._pause_end_s):
            return None
        if not self._replicas:
            return await self._propose(wishes, [])
        await self.signs.begin()
        source = max(sorted(wishes), key=lambda rank: news.steps.get(rank, 0))
        return await self._propose(wishes, sorted(wishes.keys() - {source}))

    async def _receive(self, plan: Plan) -> None:
        """Receives the state of the source.

        Raises:
          PlanError: it has not come in time.
        """
        own = key(plan.number, "level", self.rank)
        state = key(plan.number, "state")
        while (entry := await self._world.wait(state, _SLICE_S)) is None:
            # The others go on without this process if the source has died.
            refused = await self._world.entry(own)
            await self._check_entry(plan)
            news = await self._news()
            self._check_life(news)
            self._check_left(plan, plan.survivors(), news)
            if refused is not None or self._world.over():
                raise PlanError("no rank has offered its state.")
        offer = json.loads(entry)
        digest = await self._world.receive(plan, offer)
        sent = await self._world.wait(key(plan.number, "digest", self.rank), OPEN_S)
        if sent is None:
            raise PlanError(f"rank {offer['rank']} has not finished its state.")
        if sent.decode() != digest:
            raise PlanError(
                f"the state of rank {offer['rank']} has arrived with other bits: "
                f"SHA-256 {digest} instead of {sent.decode()}."
            )
        level = await self._level(plan, _LEVEL)
        if level != _LEVEL:
            raise PlanError(f"the others went on: {level.decode()}")
        await self._check_entry(plan)

    async def _level(self, plan: Plan, level: bytes) -> bytes:
        """Tells the others that this process has the state, or why not, in time."""
        return await self._world.claim(key(plan.number, "level", self.rank), level)
