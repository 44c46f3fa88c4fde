"""A plan for the next session, its entries, and the interface of the agreement on it.

The processes agree by entries that all can read. All but those of news are made once:

  news/session/<n>      session n has begun
  news/plan             the number of the newest plan
  news/lives/<place>    the number of processes that were started for a place
  news/wishes/<place>/<life>
                        a process that was started again: the number of its attempt
  news/signs/<place>/<life>
                        a number that a replica in a session, or a plan, raises
  news/steps/<place>    the step of the state of a process that wants to come back
  <n>/plan              the members of session n: made by one member that sees a wish
  <n>/ready/<place>     the member has opened session n, and proven its paths
  <n>/open              all members have
  <n>/stop/<place>      a call of the running session: the program of the member does
                        not pass the first `admit` from it on before the decision
  <n>/decision          the call from which on session n is used, or why it never is
  <n>/moved/<place>     the member uses session n
  <n>/source            the member that gives its state: the first that uses session n
  <n>/state             the structure of the state
  <n>/digest/<place>    the SHA-256 of the bytes that the source has sent there
  <n>/level/<place>     the process that has come back has the state, or is too late
  <n>/ended/<place>     the program of a member has ended: the number of live members
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

FOLDER = "jax_optireduce"
NEWS = f"{FOLDER}/news"

# Time in which replicas enter the news into a coordinator that was started again, in
# seconds: no process takes a place, or begins the job anew, before. Chosen: ten polls.
SETTLED_S = 2.0


def key(number: int, *rest: object) -> str:
    """Returns the key of an entry of a session, or its folder."""
    return "/".join(map(str, (FOLDER, number, *rest)))


class PlanError(Exception):
    """A plan fails, for the reason of the text."""


class ReplacedError(Exception):
    """A newer process has the place of this one; the text names both."""


class Member(NamedTuple):
    """A process at its place: its number there, and its attempt to come back."""

    life: int
    attempt: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """A session that is to follow.

    Attributes:
      number: of the session, among all of the job.
      proposer: the rank that gathers the answers of the members.
      members: the process of each rank.
      newcomers: the ranks that come back. Without any, all processes of the job were
        started again, and begin it anew.
      per_slice: processes of a slice.
    """

    number: int
    proposer: int
    members: Mapping[int, Member]
    newcomers: Sequence[int]
    per_slice: int

    def survivors(self) -> list[int]:
        """Returns the members of the running session."""
        return [rank for rank in self.members if rank not in self.newcomers]

    def encoded(self) -> bytes:
        """Returns the plan as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @staticmethod
    def decoded(entry: bytes) -> "Plan":
        """Returns the plan of an entry."""
        fields = json.loads(entry)
        members = {int(rank): Member(*of) for rank, of in fields["members"].items()}
        return Plan(**{**fields, "members": members})


@dataclasses.dataclass
class Coming:
    """A session that this process has opened beside the running one.

    Attributes:
      plan: of it.
      opened: the session.
      stop: the call that this process has entered.
      begins: the call from which on it is used, once that is decided.
      given_up: the program has not found the decision in time, and uses it never.
    """

    plan: Plan
    opened: Any
    stop: int | None = None
    begins: int | None = None
    given_up: bool = False


class News:
    """The entries of news.

    Attributes:
      sessions: numbers of sessions that have begun, ascending.
      plan: number of the newest plan, first 0.
      lives: the number of the newest process of each rank.
      wishes: the attempt of each process that wants to come back, by rank and life.
      signs: the last sign of life of each replica, by rank and life.
      steps: of the states of those that want to come back.
    """

    def __init__(self, entries: Mapping[str, bytes]) -> None:
        """Reads entries, by the rest of their keys."""
        rows = [(name.split("/"), int(value)) for name, value in entries.items()]
        self.plan = max((n for of, n in rows if of[0] == "plan"), default=0)
        self.sessions = sorted(int(of[1]) for of, _ in rows if of[0] == "session")
        self.lives = {int(of[1]): life for of, life in rows if of[0] == "lives"}
        self.wishes = {
            (int(of[1]), int(of[2])): attempt
            for of, attempt in rows
            if of[0] == "wishes"
        }

        self.steps = {int(of[1]): step for of, step in rows if of[0] == "steps"}
        self.signs = {
            (int(of[1]), int(of[2])): sign for of, sign in rows if of[0] == "signs"
        }

    def process_of(self, rank: int) -> Member:
        """Returns the newest process of a rank, with the attempt of its wish, or 0."""
        life = self.lives.get(rank, 0)
        return Member(life, self.wishes.get((rank, life), 0))

    def newest(self) -> int:
        """Returns the number of the newest session that has begun, first 0."""
        return max(self.sessions, default=0)


def sign_key(rank: int, life: int) -> str:
    """Returns the key of the signs of life of a replica."""
    return f"{NEWS}/signs/{rank}/{life}"


def step_key(rank: int) -> str:
    """Returns the key of the step of a process that wants to come back."""
    return f"{NEWS}/steps/{rank}"


def wish_key(rank: int, life: int) -> str:
    """Returns the key of the wish of a process."""
    return f"{NEWS}/wishes/{rank}/{life}"


class World(Protocol):
    """The others, the session and the time. Waits end early with the process."""

    def now(self) -> float:
        """Returns the time, in seconds."""
        ...

    def over(self) -> bool:
        """Whether the process takes part no more."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...

    async def age_s(self) -> float:
        """Returns the age of the service that keeps the entries, in seconds."""
        ...

    async def entry(self, key: str) -> bytes | None:
        """Returns an entry, if it exists."""
        ...

    async def entries(self, folder: str) -> Mapping[str, bytes]:
        """Returns all entries of a folder, by the rest of their keys."""
        ...

    async def wait(self, key: str, limit_s: float) -> bytes | None:
        """Returns an entry once it exists; None if it does not in time."""
        ...

    async def publish(self, key: str, value: bytes) -> None:
        """Makes an entry, or replaces it."""
        ...

    async def claim(self, key: str, value: bytes) -> bytes:
        """Makes an entry unless it exists; returns the one in force."""
        ...

    async def forget(self, key: str) -> None:
        """Removes an entry, or a folder."""
        ...

    async def open(self, plan: Plan) -> Any:
        """Opens the session of a plan. Raises `PlanError`: it does not open."""
        ...

    def close(self, opened: Any) -> None:
        """Closes a session that is not used."""
        ...

    async def move(self, coming: Coming) -> None:
        """Drains, unless this process comes back; continues in the session."""
        ...

    def retire(self) -> None:
        """Leaves the session before the move."""
        ...

    def leave(self, reason: str) -> None:
        """Leaves the session, to enter another one."""
        ...

    async def serve(self, plan: Plan) -> None:
        """Begins to send the state to the newcomers, as the source."""
        ...

    async def receive(self, plan: Plan, offer: Mapping[str, Any]) -> str:
        """Receives the state; returns its SHA-256.

        Raises `PlanError`, or an error of the program if it has another state.
        """
        ...

    def silent_ranks(self) -> Sequence[int]:
        """Returns the ranks of the running session that have not been heard."""
        ...

    def live_processes(self) -> int:
        """Returns the number of members of the running session, without removed."""
        ...

    def remove(self, rank: int, reason: str) -> None:
        """Removes a rank from the running session."""
        ...

    def log(self, line: str) -> None:
        """Logs a line."""
        ...
