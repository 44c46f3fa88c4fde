"""The part of `bench` on each rank: makes the calls, times them, checks sums.

The kinds of calls (the modes, and "xla" for `lax.psum`) take turns of a few calls each,
in a random order for every round, the same on all ranks. So other load of the machine
or the network affects all kinds equally, and the effects of one kind on the next, such
as different ends on different ranks, are in the times of all kinds.
"""

import dataclasses
import io
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jax_optireduce
from jax_optireduce._jax import coordination
from jax_optireduce._program.call import DEFERRING_MODES

AXIS = "ranks"

# The kind of `lax.psum`; the other kinds are modes.
XLA = "xla"

# Calls of one kind in a turn.
# Chosen: few, so that pauses of the machine (50 ms are usual on virtual ones) affect
# all kinds within seconds; and more than one, since the first call of a turn may wait
# for data of the previous kind.
TURN_CALLS = 5

# Longest wait of a rank for the measurements of the others, in seconds.
# Chosen: longer than the lag that ranks can accumulate in one size.
_GATHER_TIMEOUT_S = 120.0

# A contribution is one row of whole numbers from -2 to 2, times a weight from 1 to 3
# that depends on the rank and the call: sums are exact in every dtype (bfloat16: up to
# 42 ranks), and lost data, repeated data and data of another call change them.
_LARGEST_NUMBER = 2
_WEIGHTS = 3

# Tolerance of a sum in mode "lossy" without missing data, in units of the dtype's
# rounding error and of the largest sum. Chosen: the Hadamard transform adds and
# subtracts 1,024 numbers, there and back, in float32.
_LOSSY_ROUNDING = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a measurement.

    Attributes:
      sizes_bytes: sizes of the data that a call reduces, in order.
      dtype: name of its dtype.
      in_place: whether each call donates its array (`donate_argnums`), so that the
        result may reuse its memory, as with the gradients in a train step.
      kinds: kinds of calls: modes, and `XLA`.
      iterations: counted calls of each kind.
      warm_up: calls of each kind before these.
      check_calls: calls of each mode after these whose sums are verified.
      late_s: sleep of the last rank before each timed call, in seconds.
    """

    sizes_bytes: Sequence[int]
    dtype: str
    in_place: bool
    kinds: Sequence[str]
    iterations: int
    warm_up: int
    check_calls: int
    late_s: float


@dataclasses.dataclass
class Calls:
    """Measurements of the calls of one kind: of this rank, or of all, stacked.

    Attributes:
      seconds: float64 [calls], duration of each.
      missing: float32 [calls], share of the data that missed its call.
      deadline_s: float32 [calls], deadline of each, in seconds; 0: none.
      cpu_s: float64 [], processor time of this process during these calls, in seconds.
      wrong: int64 [], elements with a wrong sum.
      checked: int64 [], calls whose sums were verified.
      elements: int64 [], elements that a call reduces.
    """

    seconds: np.ndarray
    missing: np.ndarray
    deadline_s: np.ndarray
    cpu_s: np.ndarray
    wrong: np.ndarray
    checked: np.ndarray
    elements: np.ndarray


def make_mesh() -> Mesh:
    """Returns a mesh with one device of each process, in rank order."""
    first = {d.process_index: d for d in reversed(jax.devices())}
    devices = [first[rank] for rank in sorted(first)]
    return Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))


def connect_gloo(mesh: Mesh) -> None:
    """Connects the ranks by Gloo, and discards its messages on standard output."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        spec = PartitionSpec(AXIS)
        psum = jax.shard_map(
            lambda x: lax.psum(x, AXIS), mesh=mesh, in_specs=spec, out_specs=spec
        )
        one = np.ones(1, np.float32)
        sharding = NamedSharding(mesh, spec)
        x = jax.make_array_from_process_local_data(sharding, one)
        jax.block_until_ready(jax.jit(psum)(x))
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def measure(
    plan: Plan, size_bytes: int, mesh: Mesh, progress: Callable[[], None]
) -> dict[str, Calls]:
    """Measures all kinds at one size.

    Args:
      plan: the measurement.
      size_bytes: size of the data.
      mesh: see `make_mesh`.
      progress: called after each turn.

    Returns:
      The measurements of this rank, by kind.
    """
    data = _Data(plan, size_bytes, mesh)
    kinds = {kind: _Kind(kind, data) for kind in plan.kinds}
    for number, (count, counted) in enumerate(_turns(plan)):
        for kind in random.Random(number).sample(list(kinds), len(kinds)):  # noqa: S311
            kinds[kind].turn(count, counted=counted)
            progress()
    return {name: kind.finish(plan.check_calls) for name, kind in kinds.items()}


def turns(plan: Plan) -> int:
    """Returns the number of turns of each kind at a size."""
    return len(_turns(plan))


def gather(label: str, own: Calls) -> Calls:
    """Returns the measurements of all ranks, with a leading axis of ranks.

    Uses JAX's coordination service, which takes no part in the measurement.

    Args:
      label: names this exchange; the same on all ranks, used once.
      own: the measurements of this rank.

    Raises:
      RendezvousError: the measurements of a rank did not arrive in time.
    """
    buffer = io.BytesIO()
    np.savez(buffer, **dataclasses.asdict(own))
    answers = coordination.exchange(label, buffer.getvalue(), _GATHER_TIMEOUT_S)
    ranks = [np.load(io.BytesIO(answer)) for answer in answers]
    return Calls(
        **{name: np.stack([rank[name] for rank in ranks]) for name in ranks[0]}
    )


def gather_hosts(label: str) -> list[dict[str, Any]]:
    """Returns the host of each rank: its name, cores and load average."""
    own = {
        "name": socket.gethostname(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    answers = coordination.exchange(label, json.dumps(own).encode(), _GATHER_TIMEOUT_S)
    return [json.loads(answer) for answer in answers]


def weight(rank: int, call: int) -> int:
    """Returns the factor of the row of a rank in a call; rank 0 varies it by call."""
    return 1 + (rank or call) % _WEIGHTS


def expected_sum(row: np.ndarray, ranks: int, call: int) -> np.ndarray:
    """Returns the expected sum of a call over the ranks."""
    return row * sum(weight(rank, call) for rank in range(ranks))


def wrong_elements(mode: str, got: np.ndarray, want: np.ndarray, epsilon: float) -> int:
    """Counts wrong elements.

    Args:
      mode: "lossy" may round, the others may not.
      got: the results.
      want: whole numbers.
      epsilon: rounding error of the dtype, relative.
    """
    share = _LOSSY_ROUNDING * epsilon if mode == "lossy" else 0.0
    tolerance = share * float(np.abs(want).max(initial=1.0))
    # NaN is wrong in any comparison.
    return int(np.count_nonzero(~(np.abs(got - want) <= tolerance)))


class _Data:
    """Data of all kinds: an array on this rank."""

    def __init__(self, plan: Plan, size_bytes: int, mesh: Mesh) -> None:
        self.dtype = jnp.dtype(plan.dtype)
        elements = size_bytes // self.dtype.itemsize
        self.mesh = mesh
        self.rank, self.ranks = jax.process_index(), mesh.size
        self.in_place = plan.in_place
        self.late_s = plan.late_s if self.rank == self.ranks - 1 else 0.0
        self.name = f"bench {plan.dtype} {elements}"
        self._spec = PartitionSpec(AXIS)
        high = _LARGEST_NUMBER + 1
        random_numbers = np.random.default_rng(1)
        self.row = random_numbers.integers(1 - high, high, elements, np.int32)
        self.array = self.scaled(1)

    def scaled(self, factor: int) -> jax.Array:
        """Returns the row times a factor, as this rank's part of a global array."""
        row = (self.row * factor).astype(self.dtype)
        sharding = NamedSharding(self.mesh, self._spec)
        return jax.make_array_from_process_local_data(sharding, row[None])

    def program(
        self, function: Callable[[Any], Any], *, in_place: bool = False
    ) -> Callable[[Any], Any]:
        """Maps a function of the array over the ranks, and compiles it by a call."""
        mapped = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=self._spec,
            out_specs=self._spec,
            check_vma=False,
        )
        program = jax.jit(mapped, donate_argnums=(0,) if in_place else ())
        jax.block_until_ready(program(self.scaled(1) if in_place else self.array))
        return program


class _Kind:
    """The calls of one kind at one size, on this rank."""

    def __init__(self, kind: str, data: _Data) -> None:
        self._kind, self._data = kind, data
        self._arguments: dict[str, Any] = {
            "mode": kind,
            "name": f"{data.name} {kind}",
        }
        self._seconds: list[float] = []
        self._reports: list[Any] = []
        self._cpu_s = 0.0
        self._call = data.program(self._reduce, in_place=data.in_place)
        self._defers = kind in DEFERRING_MODES
        if self._defers:
            self._drain = data.program(
                lambda x: jax_optireduce.drain(x, AXIS, **self._arguments)
            )

    def _reduce(self, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Returns the sums, and [missing share, deadline] in modes with a deadline."""
        if self._kind == XLA:
            return lax.psum(x, AXIS), None
        arguments = self._arguments
        if self._kind == "exact":
            return jax_optireduce.psum(x, AXIS, **arguments), None
        sums, stats = jax_optireduce.psum(x, AXIS, **arguments, return_stats=True)
        there = (1 - stats.missing_contributions) * (1 - stats.missing_results)
        return sums, jnp.stack([1 - there, stats.deadline_s])[None]

    def turn(self, calls: int, *, counted: bool) -> None:
        """Makes a few calls."""
        seconds, reports = [], []
        # In place, a call reduces the result of the previous one, since new arrays
        # would take time between the calls. In so few calls the numbers stay small.
        in_place = self._data.in_place
        x = self._data.array
        if in_place:
            # XLA copies arrays of NumPy before it reuses their memory.
            x = self._call(self._data.scaled(1))[0]
        jax.block_until_ready(x)
        cpu_s = time.process_time()
        for _ in range(calls):
            if self._data.late_s:
                time.sleep(self._data.late_s)
            start = time.perf_counter()
            result = jax.block_until_ready(self._call(x))
            seconds.append(time.perf_counter() - start)
            reports.append(result[1])
            x = result[0] if in_place else x
            # Freed here, not during the next timed call.
            del result
        if counted:
            self._cpu_s += time.process_time() - cpu_s
            self._seconds += seconds
            self._reports += reports

    def finish(self, check_calls: int) -> Calls:
        """Drains the data in flight, verifies sums, returns the measurements."""
        if self._defers:
            jax.block_until_ready(self._drain(self._data.array))
        wrong, checked = 0, 0
        if self._kind != XLA:
            wrong, checked = self._check(check_calls)
        reports = np.zeros((len(self._seconds), 2), np.float32)
        if self._reports[0] is not None:
            reports = np.stack([_own(report) for report in self._reports])
        return Calls(
            seconds=np.array(self._seconds),
            missing=reports[:, 0],
            deadline_s=reports[:, 1],
            cpu_s=np.array(self._cpu_s),
            wrong=np.array(wrong),
            checked=np.array(checked),
            elements=np.array(self._data.row.size),
        )

    def _check(self, calls: int) -> tuple[int, int]:
        """Returns the number of wrong elements, and of verified calls.

        A mode that defers late data is verified by the sum over all calls and a drain,
        "lossy" by the calls without missing data.
        """
        data = self._data
        integral = jnp.issubdtype(data.dtype, jnp.integer)
        epsilon = 0.0 if integral else float(jnp.finfo(data.dtype).eps)
        got_all, want_all = np.zeros(data.row.size), np.zeros(data.row.size)
        wrong = checked = 0
        for call in range(calls):
            x = data.scaled(weight(data.rank, call))
            sums, report = jax.block_until_ready(self._call(x))
            got = _own(sums).astype(np.float64)
            want = expected_sum(data.row, data.ranks, call)
            if self._defers:
                got_all, want_all = got_all + got, want_all + want
            elif report is None or _own(report)[0] == 0:
                wrong += wrong_elements(self._kind, got, want, epsilon)
                checked += 1
        if self._defers and calls:
            rest = _own(self._drain(data.array)).astype(np.float64) * data.ranks
            # The mean of whole numbers times their count is whole, up to rounding.
            got_all += np.rint(rest)
            wrong = wrong_elements(self._kind, got_all, want_all, epsilon)
            checked = calls
        return wrong, checked


def _own(array: jax.Array) -> np.ndarray:
    """Returns this rank's row of a global array."""
    return np.asarray(array.addressable_data(0))[0]


def _turns(plan: Plan) -> list[tuple[int, bool]]:
    """Returns the calls of each turn of a kind, and whether they count."""
    turns = []
    for calls, counted in ((plan.warm_up, False), (plan.iterations, True)):
        whole, rest = divmod(calls, TURN_CALLS)
        turns += [(TURN_CALLS, counted)] * whole + [(rest, counted)] * (rest > 0)
    return turns
