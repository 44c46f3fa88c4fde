"""`init`, `Communicator`, `shutdown`: the session of this process."""

import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import jax

from jax_optireduce import _jax_version, _native
from jax_optireduce._errors import NotInitializedError, UsageError
from jax_optireduce._jax import coordination, processes
from jax_optireduce._session import (
    accelerators,
    admission,
    interfaces,
    lives,
    log_thread,
    plans,
    process_end,
    rendezvous,
    replicas,
    reports,
    state_transfer,
    status,
)
from jax_optireduce._session.options import Internal, Options, resolve

_log = logging.getLogger("jax_optireduce")

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

# Compiled programs find the one communicator of a process by this name.
NAME = "default"


_NO_INTERNAL = Internal()


class Communicator:
    """This process's membership in a session; the result of `init`.

    A context manager: the end of its block is a `shutdown`, after an error a `close`.

    Attributes:
      rank: index of this process, from 0. `jax.lax.axis_index` counts the ranks of a
        mesh axis; a process with several devices has several of these.
      world_size: number of processes. Rank and number of replicas are those of the
        session in force, and change in `join` and `admit`.
      place: the number of this process in the job: the rank, but of a replica the
        number that its name has for good.
      options: the options in force.
      datagram_bytes: the largest UDP payload that crosses all paths, in bytes; 0 with
        the backend "xla".
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        options: Options,
        native: Any | None,
        datagram_bytes: int,
        internal: Internal = _NO_INTERNAL,
    ) -> None:
        """Only `init` makes an instance."""
        self.rank = rank
        self.world_size = world_size
        self.place = rank
        self.options = options
        self.internal = internal
        self.datagram_bytes = datagram_bytes
        self._native = native
        self._admission: admission.Admission | None = None
        # Sessions that others may still use, with why this process leaves them.
        self._before: list[tuple[Any, log_thread.LogThread | None, str]] = []
        self._reporter: reports.Reporter | None = None
        self._step: int | None = None
        self._exchanges = 0  # the number of them in this session
        # The places of the ranks of the session; of replicas alone.
        self._places: list[int] | None = None
        self._log_thread = (
            None if native is None else log_thread.LogThread(native, self, options)
        )

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the session: as `shutdown`, and after an error as `close`."""
        self._end("the program left the communicator's with block", error is not None)

    def __repr__(self) -> str:
        """Describes the process."""
        return (
            f"Communicator(rank={self.rank}, world_size={self.world_size}, "
            f"backend={self.options.backend!r})"
        )

    def counters(self) -> dict[str, int]:
        """Returns every counter by name, since `init`; empty with the backend "xla"."""
        return {} if self._native is None else self._native.counters()

    def flight_record(self) -> list[dict[str, Any]]:
        """Returns the last 4,096 calls of this process, oldest first.

        The record includes calls under way. It has calls between processes, from the
        arrival of the last device of this process on. Each bucket is a call. The record
        is empty with the backend "xla".

        Returns:
          For each call a dictionary:
          "number": of the call in this process, from 1;
          "collective", "sequence": its name, and its number among the calls of it;
          "description": name, dtype, shapes and mode; "bytes": of the bucket;
          "started_unix_s", "started_monotonic_s": as `time.time`, `time.monotonic`;
          "state": "under way", "done" or "failed"; "error": its beginning, or "";
          "elapsed_s": until the end, or until now;
          "missing_contributions", "missing_results", "retransmitted", "late",
          "slowest_process": as in `CollectiveStats`; -1 without one;
          "behind_s": wait for the slowest process after the data of the others had
          arrived;
          "arrivals": [rank, seconds] of the 8 ranks whose contributions came last,
          latest first: from the start of the call to the arrival of their last data;
          "waiting_for": for a call that has been under way for a second or more, the
          processes whose data is missing; "absent": those without any data.
        """
        return [] if self._native is None else self._native.flight_record()

    def dump_flight_record(self, path: str | os.PathLike[str]) -> None:
        """Writes the flight record to a file, as lines of JSON.

        The first line has the rank and the counters; each other line is a call. An
        existing file is replaced. With the backend "xla" the file has no calls.

        Raises:
          OSError: the file cannot be written.
        """
        log_thread.dump(self, path)

    def collective_totals(self) -> dict[str, dict[str, Any]]:
        """Returns totals of the calls with a result since `init`, by collective.

        Takes no time of a program, and waits for none. Collectives beyond 1,024 are
        together under "(others)". Empty with the backend "xla".

        Returns:
          For each collective a dictionary:
          "calls": number of calls by duration, in bins;
          "durations_s": the largest duration of each bin, without the last one, which
          has no bound; the same bins for all collectives;
          "elapsed_s": sum of the durations; "bytes": of the buckets;
          "missing_contributions": sum of the shares of the calls, see
          `CollectiveStats`.
        """
        return {} if self._native is None else self._native.collective_totals()

    def features(self) -> dict[str, object]:
        """Returns the granted socket buffers; empty with the backend "xla"."""
        return {} if self._native is None else self._native.features()

    def close(self, reason: str = "closed by the program") -> None:
        """Fails every call under way and leaves the session; idempotent.

        Unlike `shutdown` it does not wait for dispatched programs. Unless an exception
        ends the program, the log names lost late data, see `drain`.

        Args:
          reason: text of the calls' errors, here and on the peers.
        """
        if _session.current is self:
            _session.current = None
        if self._admission is not None:
            self._admission.end()
        self._leave_before()
        if self._native is not None:
            given_up = self._native.calls_under_way()
            handles = self._native.counters()["handles_open"]
            if handles:
                _log.info("%d handles were not ended; their results are lost", handles)
            self._native.close(reason)
            _session.peers_at_exit.dead.update(self._native.silent_ranks())
            _session.peers_at_exit.unreached.update(self._native.unreached_ranks())
            if given_up:
                _log.warning("%s", process_end.describe_given_up(given_up, reason))
            log_thread.log_late_data(self._native.take_late_data())
        if self._log_thread is not None:
            self._log_thread.end()
        if self._reporter is not None:
            self._reporter.end(reason)

    def _end(self, reason: str, at_once: bool) -> None:
        """Closes; unless `at_once`, after the end of the dispatched programs."""
        if self._native is not None and not at_once:
            if self._admission is not None:
                self._admission.announce_end()
            limit_s = self.options.shutdown_timeout_s
            process_end.complete_programs(
                self._native, limit_s, lambda: self.close(reason)
            )
        self.close(reason)

    def remove(self, rank: int, reason: str) -> None:
        """Removes a rank of which the program knows that it is gone.

        A scheduler may know it before `peer_timeout_s` of silence shows it. The other
        ranks need not be told: they agree on the removal once a call needs it, as for a
        rank that has announced that it leaves.

        Args:
          rank: index of the process.
          reason: text of the errors of calls that wait for it.

        Raises:
          ValueError: it is no other rank.
        """
        if self._native is not None:
            self._native.remove(rank, reason)

    def newest_call(self) -> int:
        """Returns the largest number of a call that has ended; -1 before the first.

        It is equal on all ranks after the same step, since it counts skipped calls.
        """
        ended = [
            record["sequence"]
            for record in self.flight_record()
            if record["state"] == "done"
            and not record["collective"].startswith(state_transfer.NAME)
        ]
        return max(ended, default=-1)

    def silent_ranks(self) -> list[int]:
        """Returns the ranks that were silent for `peer_timeout_s`, or were removed."""
        return [] if self._native is None else self._native.silent_ranks()

    def switch(self, joined: rendezvous.Joined, plan: plans.Plan) -> None:
        """Continues in another session, in which programs make their next calls.

        Args:
          joined: that session.
          plan: of it.
        """
        native, log = self._native, self._log_thread
        if native is not None:
            limit_s = self.options.shutdown_timeout_s
            process_end.complete_programs(
                native, limit_s, lambda: native.close("its last calls took too long")
            )
            joined.native.continue_from(native)
        joined.native.take_name(NAME)
        reason = f"it continues in session {plan.number}"
        self._before.append((native, log, reason))
        self._native, self.datagram_bytes = joined.native, joined.datagram_bytes
        self._log_thread = log_thread.LogThread(joined.native, self, self.options)
        _session.generation = plan.number + 1
        if self.options.replica:
            self._places = list(plan.members)
            (self.rank,) = self.ranks_of([self.place])
            self.world_size = len(self._places)
        self._exchanges = 0

    def ranks_of(self, places: Sequence[int]) -> list[int]:
        """Returns the ranks of some places in the session."""
        known = self._places
        return list(places) if known is None else [known.index(x) for x in places]

    def places_of(self, ranks: Sequence[int]) -> list[int]:
        """Returns the places of some ranks of the session."""
        known = self._places
        return list(ranks) if known is None else [known[rank] for rank in ranks]

    def retire(self) -> None:
        """Leaves the sessions before this one, in which others have no more calls."""
        self._leave_before()
        if self._native is not None:
            status.serve(self._native)

    def _leave_before(self) -> None:
        while self._before:
            native, log, reason = self._before.pop()
            if native is not None:
                native.close(reason)
                log_thread.log_late_data(native.take_late_data())
            if log is not None:
                log.end()

    def leave(self, reason: str) -> None:
        """Leaves a session in which this process has no part, to enter another one."""
        self._leave_before()
        native, log = self._native, self._log_thread
        self._native = self._log_thread = None
        if native is not None:
            native.close(reason)
        if log is not None:
            log.end()

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Fails every call under way, here and on the peers; later calls work again.

        Peers get an error in each of these calls, even if they make it later. If a step
        has several collectives, number the steps (`step=`): a cancelled step has not
        made all of its calls.

        Args:
          reason: text of the calls' errors.
        """
        if self._native is not None:
            self._native.cancel(reason)


@dataclasses.dataclass
class _Session:
    """The session of this process: the only state of this module.

    Attributes:
      current: the communicator, between `init` and `shutdown`.
      generation: number of sessions begun; equal on all ranks, which begin them
        together.
      peers_at_exit: state of the other ranks at the end of the sessions.
    """

    current: Communicator | None = None
    generation: int = 0
    peers_at_exit: process_end.PeersAtExit = dataclasses.field(
        default_factory=process_end.PeersAtExit
    )


_session = _Session()


def _with_arguments_of(
    _of: Callable[_P, object],
) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Gives a function the arguments of another one, for type checkers."""
    return lambda function: function


@_with_arguments_of(Options)
def init(**options: Any) -> Communicator:
    """Joins the processes of this program; once, before the first collective.

    Initialises `jax.distributed` unless the program has done so: from
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or in a cluster that
    JAX detects (SLURM, Kubernetes, Cloud TPU, Open MPI). `init` then sets
    `jax_enable_recoverability`, so that the death of a process does not end the others;
    that of process 0 does, without the option `coordinator`. Without these variables
    and a cluster the program has one process.

    Args:
      **options: fields of `Options`. An option that is not given comes from the
        environment variable JAX_OPTIREDUCE_<FIELD>, or is the default.

    Returns:
      The communicator of this process, which all its collectives use.

    Raises:
      UsageError: an option is unknown or does not fit.
      NotInitializedError: a communicator exists already.
      RendezvousError: a process is missing, or joins a second time; ranks differ in
        version or options; this process reaches its limit of open files. All ranks may
        then call `init` again.

    Example:
      >>> import jax_optireduce
      >>> with jax_optireduce.init(peer_timeout_s=20.0) as communicator:
      ...     print(communicator.world_size)
      1
    """
    if _session.current is not None:
        raise NotInitializedError(
            f"jax_optireduce.init was called before and returned {_session.current!r}; "
            "call it once per process, or jax_optireduce.shutdown() before the next "
            "one."
        )
    if warning := _jax_version.warning(jax.__version__):
        _log.warning("%s", warning)
    resolved, origins = resolve(options, os.environ)
    internal = Internal.read(os.environ)
    if resolved.replica:
        communicator = Communicator(0, 1, resolved, None, 0, internal)
        communicator.place = replicas.take_place(resolved)
        return _come_back(communicator)
    rendezvous.initialize_distributed(resolved, internal)
    rank, world_size = processes.process()
    if lives.begin(rank) > 1 and _session.generation == 0:
        return _come_back(Communicator(rank, world_size, resolved, None, 0, internal))
    number = _session.generation
    label = f"jax_optireduce/{number}"
    _session.generation += 1
    with rendezvous.explained_descriptors():
        # Before the rendezvous: processes with different options must also end in
        # order.
        process_end.install(
            _end_at_exit,
            _cancel_interrupted,
            resolved.shutdown_timeout_s,
            resolved.peer_timeout_s,
            hosts_service=not rendezvous.has_coordinator(resolved),
        )
        joined = rendezvous.join(label, NAME, rank, resolved, internal)
    if joined.native is not None:
        status.serve(joined.native)
    for plugin in accelerators.register():
        _log.info("%r", plugin)
    communicator = Communicator(
        rank, world_size, resolved, joined.native, joined.datagram_bytes, internal
    )
    if joined.native is not None and world_size > 1:
        communicator._admission = admission.Admission(  # noqa: SLF001 (its own module)
            communicator, NAME, number, lives.begin(rank), joined.lives
        )
        if rank == 0:
            admission.announce_session(number)
    _session.current = communicator
    _begin_reports(communicator)
    _announce(communicator, _describe(communicator, joined))
    values = resolved.values()
    settings = ", ".join(
        f"{n}={values[n]!r} ({origin})" for n, origin in origins.items()
    )
    _log.info("options: %s", settings or "all default")
    return communicator


def _come_back(communicator: Communicator) -> Communicator:
    """Prepares a process that was started again to take its place by `join`."""
    options, place = communicator.options, communicator.place
    process_end.begin_again(place)
    process_end.install(
        _end_at_exit,
        _cancel_interrupted,
        options.shutdown_timeout_s,
        options.peer_timeout_s,
        hosts_service=not rendezvous.has_coordinator(options),
    )
    for plugin in accelerators.register():
        _log.info("%r", plugin)
    life = lives.begin(place)
    if options.backend == "optireduce":
        communicator._admission = admission.Admission(  # noqa: SLF001 (its own module)
            communicator, NAME, admission.newest_session(), life, {}
        )
    _session.current = communicator
    _begin_reports(communicator)
    if not options.replica:
        _log.warning(
            "rank %d, life %d: the job has begun already. join(state, step) takes the "
            "place of the earlier process.",
            place,
            life,
        )
    return communicator


def _begin_reports(communicator: Communicator) -> None:
    """Reports to the coordinator, if the job has one, from now on."""
    options = communicator.options
    alone = communicator.world_size == 1 and not options.replica
    if alone or not rendezvous.has_coordinator(options):
        return

    def place() -> tuple[int, int | None]:
        return _session.generation - 1, communicator._step  # noqa: SLF001

    communicator._reporter = reports.Reporter(  # noqa: SLF001 (its own module)
        communicator, place, options.coordinator, lives.begin(communicator.place)
    )


def join(state: _T, step: int = 0) -> tuple[_T, int]:
    """Takes the place of this process in a job that runs; before the training loop.

    Where the job begins it returns its arguments, once all ranks have called it. In a
    process that was started again it waits until the others admit it (`admit`), and
    returns the state of a live rank, bit for bit. Compile the train step before
    (`lower(...).compile()`): calls of the others do not wait for a compiler.

    Replicas (`Options.replica`) begin with the state of the largest step, and may join
    again after the error of a call.

    Args:
      state: a pytree of arrays and numbers, as at a first start: it gives the
        structure, shapes, dtypes and shardings. Arrays must be replicated over the
        processes.
      step: the step at which the program begins.

    Returns:
      The state and the step at which this process goes on.

    Raises:
      RendezvousError: the others have not admitted this process within
        `call_timeout_s`, or have ended.
      UsageError: the state is not like that of the others, or is sharded over
        processes; or the job begins, and not all ranks gave the same step.
      NotInitializedError: `init` was not called.
    """
    communicator = current("join")
    part = communicator._admission  # noqa: SLF001 (its own module)
    if part is None:
        return state, step
    returned = None
    if communicator._native is None or communicator.options.replica:  # noqa: SLF001
        limit_s = communicator.options.call_timeout_s or None
        returned = part.join(state, step, limit_s)
    else:
        part.watch()
    if returned is not None:
        return returned
    if communicator.options.replica:
        _announce_replica(communicator)
        return state, step
    steps = exchange(communicator, str(step).encode())
    if len(set(steps.values())) > 1:
        by_rank = ", ".join(f"rank {rank} {of.decode()}" for rank, of in steps.items())
        raise UsageError(
            f"the ranks begin at different steps: {by_rank}. All must find the same "
            "checkpoint: start all of them again."
        )
    return state, step


def admit(state: _T, step: int, drain: Callable[[_T], _T] | None = None) -> _T:
    """Lets ranks that were started again come back; after each step, on all ranks.

    Without such a rank it takes microseconds. With one, all ranks stop at the same
    step: they drain, continue in a session with that rank, and give it the state of
    one of them. A rank that fails to come back changes nothing for the others.

    Args:
      state: after the step; the same pytree as in `join`.
      step: the number of the next step, which grows equally on all ranks.
      drain: returns the state with the late data of all `bounded` and `agreed`
        collectives applied, see `drain`; called only where a rank comes back, on all
        ranks. Without it the data in flight is lost then. Compile it before.

    Returns:
      The state, after `drain` if a rank has come back.

    Raises:
      NotInitializedError: `init` was not called.
    """
    communicator = current("admit")
    communicator._step = step  # noqa: SLF001 (its own module)
    part = communicator._admission  # noqa: SLF001
    return state if part is None else part.admit(state, step, drain)


def _describe(communicator: Communicator, joined: rendezvous.Joined) -> str:
    """Describes the session that a process has joined, in one line."""
    options = communicator.options
    if communicator.world_size == 1:
        return "one process: no data leaves it"
    place = f"{communicator.world_size} processes; rank {communicator.rank}"
    if joined.native is None:
        return f"{place}; backend 'xla': calls are those of jax.lax"
    ports = ", ".join(map(str, joined.native.ports()))
    interface = interfaces.name_of(joined.address, _native.interface_addresses())
    tags = "none" if options.security == "none" else _native.cipher_library()
    deadline = (
        f"deadline {options.deadline_s:g} s"
        if options.deadline_s
        else f"deadlines learned, at most {options.deadline_max_s:g} s"
    )
    reason = f" ({joined.reason})" if joined.reason else ""
    return (
        f"{place} at {joined.address} ({interface or 'no interface'}), UDP {ports}; "
        f"datagrams of {joined.datagram_bytes} bytes{reason}, tags by {tags}; "
        f"{deadline}"
    )


def _announce(communicator: Communicator, line: str) -> None:
    """Logs a line, which rank 0 prints in a program that has not set logging up."""
    _log.info("%s", line)
    first = communicator.rank == 0 and communicator.world_size > 1
    if first and not _log.hasHandlers() and _log.level <= logging.INFO:
        print(f"jax_optireduce: {line}", file=sys.stderr)  # noqa: T201 (see above)


def _announce_replica(communicator: Communicator) -> None:
    options, rank = communicator.options, communicator.rank
    number = communicator.world_size
    line = f"{number} replicas; {options.replica!r} is rank {rank}"
    _announce(communicator, line)


def shutdown() -> None:
    """Leaves the session after the end of the dispatched programs.

    Calls that take longer than `shutdown_timeout_s` from then on are given up: all
    calls fail, here and on the peers, and the log has their number. During the handling
    of an error `shutdown` does not wait. All ranks may call `init` again afterwards.
    Without a communicator `shutdown` has no effect.
    """
    if _session.current is not None:
        at_once = process_end.ends_by_error()
        reason = "the program called jax_optireduce.shutdown()"
        _session.current._end(reason, at_once)  # noqa: SLF001 (its own module)


def stats() -> dict[str, int]:
    """Returns the counters of this process since `init`, by name.

    They count datagrams, bytes, retransmissions and refusals, see
    `Communicator.counters`.

    Raises:
      NotInitializedError: `init` was not called.
    """
    return current("stats").counters()


def exchange(communicator: Communicator, payload: bytes) -> dict[int, bytes]:
    """Sends bytes to all live processes; returns those of each, by rank.

    Args:
      communicator: of this process.
      payload: at least one byte.

    Raises:
      RendezvousError: a process did not take part within `call_timeout_s`.
    """

    def silent() -> list[int]:
        native = communicator._native  # noqa: SLF001 (its own module)
        return [] if native is None else native.silent_ranks()

    limit_s = communicator.options.call_timeout_s or None
    # A process that has come back has made none of the exchanges before.
    session = _session.generation - 1
    number = communicator._exchanges  # noqa: SLF001 (its own module)
    communicator._exchanges += 1  # noqa: SLF001
    label = f"jax_optireduce/{session}/exchanges/{number}"
    place = communicator.rank, communicator.world_size
    return coordination.exchange_among_live(label, payload, silent, limit_s, place)


def running() -> Communicator | None:
    """Returns the communicator, or None."""
    return _session.current


def current(kind: str) -> Communicator:
    """Returns the communicator.

    Args:
      kind: the function that needs it, for the message.

    Raises:
      NotInitializedError: `init` was not called.
    """
    if _session.current is None:
        raise NotInitializedError(
            f"{kind} needs a communicator; call jax_optireduce.init() at the start of "
            "the program, before the first jax computation, in every process."
        )
    return _session.current


def _cancel_interrupted() -> None:
    if _session.current is not None:
        _session.current.cancel("interrupted")


def _leave_to_parent() -> None:
    """In a forked process: the session is its parent's.

    Threads and sockets of the session are not copied with the process, or are shared.
    """
    communicator, _session.current = _session.current, None
    if communicator is not None:
        communicator._native = None  # noqa: SLF001 (its own module)
        communicator._log_thread = None  # noqa: SLF001
        reporter, communicator._reporter = communicator._reporter, None  # noqa: SLF001
        if reporter is not None:
            reporter.leave_to_parent()
        _native.leave_to_parent()
        processes.leave_to_parent()
    process_end.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def _end_at_exit(at_once: bool) -> process_end.PeersAtExit:
    """Leaves the session; returns the state of the other ranks."""
    if _session.current is not None:
        _session.current._end(process_end.reason(), at_once)  # noqa: SLF001
    return _session.peers_at_exit
