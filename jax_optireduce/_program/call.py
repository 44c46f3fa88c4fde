"""The description of a call: every static fact, in one frozen object.

The public functions make it from their arguments (`checks.checked_call`), the
primitive has it as its parameter, and the lowering reads it. It excludes the number of
the call (`step`), which is an operand of the program.
"""

import dataclasses
import enum
from collections.abc import Hashable, Sequence
from typing import Any, TypedDict

from jax_optireduce import _native
from jax_optireduce._argument_types import Mode, WireFormat

# A mapped axis, or several.
AxisName = Hashable | Sequence[Hashable]

# The axis of all replicas of a session (`Options.replica`), whose number may change
# between two calls of one program. It is no axis of a mesh.
REPLICAS = "REPLICAS"

# Policies for late data in reduce-scatter and in all-gather: see `CallArguments`.
MODES = tuple(_native.MODES)

# Modes whose calls may leave data in flight.
DEFERRING_MODES = tuple(mode for mode, defers in _native.MODES.items() if defers)

# Formats of float32 values on the wire: see `CallArguments`.
WIRE_FORMATS = _native.WIRE_FORMATS


class StageArguments(TypedDict, total=False):
    """Keyword arguments of every collective, see `CallArguments`."""

    mode: Mode | None
    wire_format: WireFormat
    step: Any
    name: str | None


class CallArguments(StageArguments, total=False):
    """Keyword arguments that the collectives share.

    `begin`, `psum_scatter` and `all_gather` take those up to `name`.

    Attributes:
      mode: policy for data that misses the deadline of the call (`Options.deadline_s`).
        None takes `Options.mode`, or else "exact" (in the functions for gradients
        "bounded").
        "exact" has no deadline: it waits for every rank, and a dead rank is an error
        after `Options.peer_timeout_s`. "bounded" ends by the deadline, and adds late
        data to a later call with the same name: no data is lost, see `drain`. From
        three processes on the others continue after a death while they are a majority:
        the sum is then over the others. "agreed" is as "bounded" for contributions, and
        waits for their sums, so that all ranks get the same bits; a dead rank is an
        error. "lossy" ends by the deadline, drops late data, and scales each sum by the
        number of ranks divided by that of its contributions.
      wire_format: format of float32 leaves on the wire. "float32", the default:
        unchanged; "bfloat16": half of the bytes; "int8": about a quarter, blocks of 32
        values share an exponent; "float4": about an eighth, in such blocks; "auto":
        "int8" while the network limits the calls, else "float32". Contributions and
        sums are rounded without bias, up or down at random. In modes "bounded" and
        "agreed" the rounding error is added to the next call with the same name, and
        `drain` returns the rest; in the others it is lost. In every mode all ranks get
        the same bits of a sum. A block with a NaN or an infinity becomes NaN. Leaves of
        other dtypes are errors.
      step: int32 [] or Python int, at least 0: the number of this call, larger than
        that of the previous call; such as the optimizer's step. Programs whose ranks
        may repeat or skip a call (a restart, a branch) must pass it. None counts the
        calls.
      name: name of the collective, at most 160 bytes of printable characters;
        concurrent calls need different names. None takes the file and line of the code,
        which then is one collective in all programs: pass a name if one line serves two
        models.
      specs: where the compiler shards some axes by itself
        (`jax.shard_map(..., axis_names=)`): the sharding of the leaves over these axes,
        as a tree, or a prefix of one, of PartitionSpec, NamedSharding or None; for
        gradients that of the parameters. Manual axes in it have no effect. Each device
        sends its part. None takes the sharding from the types (explicit axes), or
        divides the largest dimension, for which the compiler may move data between
        devices.
      fast_axis: in programs whose axes are all manual: the axes among `axis_name` that
        cross a fast network, such as the devices of a process. XLA reduces over them:
        with k devices along them each sends 1/k of the bytes over the others, and
        receives the parts of the result from its neighbours. Sums over these axes are
        those of `jax.lax.psum_scatter`. None: the devices of a process are summed on
        the host, and each process sends the sum.
    """

    specs: Any
    fast_axis: AxisName | None


class Drain(enum.IntEnum):
    """Whether a call waits for all data that earlier calls left in flight."""

    # An ordinary call.
    NONE = 0
    # A drain of previous calls: an error if there were none.
    OF_CALLS = _native.DRAIN_OF_CALLS
    # A drain of previous calls, if any.
    OF_CALLS_IF_ANY = _native.DRAIN_OF_CALLS_IF_ANY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a collective.

    Attributes:
      kind: the public function, for messages.
      operation: the stages on the wire: "allreduce" has both, "reduce_scatter" the
        first, "all_gather" the second.
      key: names the collective, see `identity`.
      axes: mapped axes, of the mesh or of a named `vmap`, and `REPLICAS`.
      fast: those of `axes` over which XLA reduces; see `_calls.fast_axis`.
      mode: see `CallArguments`.
      wire_format: see `CallArguments`.
      mean: whether the sum is divided by the number of ranks.
      of_values: whether the mean is one of values rather than of gradients, see
        `present`.
      drain: whether the call returns the data in flight of earlier calls with this key
        and mode. Only bounded and agreed calls leave data in flight.
      rotated: whether a lossy call applies the Hadamard transform.
      derived: whether the call results from differentiation of another.
      typed: whether JAX tracks variation over the axes (check_vma=True).
      counted: whether the session numbers the call, which has no `step`.
      clusters: of an all_gather in mode "lossy", the cluster of each rank; empty: the
        call waits for all ranks.
      spare: ranks of each cluster for which that call does not wait.
    """

    kind: str
    key: str
    axes: tuple[str, ...]
    mode: str
    wire_format: str
    operation: str = "allreduce"
    mean: bool = True
    of_values: bool = False
    drain: Drain = Drain.NONE
    rotated: bool = False
    derived: bool = False
    typed: bool = False
    counted: bool = False
    fast: tuple[str, ...] = ()
    clusters: tuple[int, ...] = ()
    spare: int = 0

    @property
    def present(self) -> bool:
        """Whether the mean is over the contributions that have come, see `present`."""
        return self.of_values and self.mode == "bounded"

    @property
    def of_live(self) -> bool:
        """Whether the mean is over the live ranks, whose number the call reports."""
        varies = self.mode == "bounded" or self.over_replicas
        return self.mean and varies and not self.present

    @property
    def over_replicas(self) -> bool:
        """Whether the call is over all replicas of the session."""
        return REPLICAS in self.axes

    @property
    def slow(self) -> tuple[str, ...]:
        """The axes over which this package reduces."""
        return tuple(axis for axis in self.axes if axis not in self.fast)
