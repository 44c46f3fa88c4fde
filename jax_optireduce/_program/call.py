"""The description of a call: every static fact, in one frozen object.

The public functions make it from their arguments (`checks.checked_call`), the
primitive has it as its parameter, and the lowering reads it. It excludes the number of
the call (`step`), which is an operand of the program.
"""

import dataclasses
import enum
from typing import Any, TypedDict

from jax_optireduce import _native
from jax_optireduce._argument_types import Mode, WireFormat

# Policies for late data in reduce-scatter and in all-gather: see `psum`.
MODES = tuple(_native.MODES)

# Modes whose calls may leave data in flight.
DEFERRING_MODES = tuple(mode for mode, defers in _native.MODES.items() if defers)

# Formats of float32 values on the wire: see `psum`.
WIRE_FORMATS = _native.WIRE_FORMATS


class CallArguments(TypedDict, total=False):
    """Keyword arguments of every collective, for the types of overloads."""

    mode: Mode | None
    wire_format: WireFormat
    step: Any
    name: str | None
    specs: Any
    fast_axis: Any


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
      axes: mapped axes, of the mesh or of a named `vmap`.
      fast: those of `axes` over which XLA reduces; see `_calls.fast_axis`.
      mode: see `psum`.
      wire_format: see `psum`.
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
        return self.mean and self.mode == "bounded" and not self.of_values

    @property
    def slow(self) -> tuple[str, ...]:
        """The axes over which this package reduces."""
        return tuple(axis for axis in self.axes if axis not in self.fast)
