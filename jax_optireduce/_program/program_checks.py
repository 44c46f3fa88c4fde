"""Two costs of a program that its results do not show, found when a call is lowered.

A scan that adds up the results of a call sends as many times the bytes as it has turns.
Collectives of XLA over the axis of the call, in library code such as batch norm, have
neither a deadline nor a way on after a death. The log of rank 0 names each case once.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_optireduce._jax import lowering
from jax_optireduce._program.call import Call
from jax_optireduce._program.jaxprs import (
    COLLECTIVES,
    axes_of,
    equations_in,
    name_of,
    parts_of,
)
from jax_optireduce._session import communicator

_log = logging.getLogger("jax_optireduce")

# Chosen: the places that fit on one line.
_PLACES_MAX = 3

# Subjects of the lines in the log: the only state of this module.
_logged: set[str] = set()


def check(ctx: Any, call: Call) -> None:
    """Logs the costs of the program around a call, once.

    Args:
      ctx: of the lowering of the call.
      call: the description of the call.
    """
    if communicator.current(call.kind).rank:
        return
    try:
        _check(ctx, call)
    except Exception as error:  # noqa: BLE001 (another JAX may have other jaxprs)
        _log.debug("the program around %r is not checked: %r", call.key, error)


def _check(ctx: Any, call: Call) -> None:
    around, program = lowering.enclosing_equations()
    for equation in around:
        # A scan may have several calls, and several shapes.
        if not lowering.next_ordinal(ctx, f"checked {id(equation)}"):
            _log_once(lowering.place(equation), describe_accumulation(equation))
    axes = slow_axes(lowering.lowering_mesh(ctx), call.axes)
    if program is not None and not lowering.next_ordinal(ctx, f"checked {axes}"):
        line = describe_collectives(program, axes)
        _log_once(line, line)


def _log_once(subject: str, line: str) -> None:
    if line and subject not in _logged:
        _logged.add(subject)
        _log.warning("%s", line)


# --- Collectives of XLA --------------------------------------------------------------


def slow_axes(mesh: Any, axes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns those of some axes that cross processes; all of them if none does."""
    processes = np.vectorize(lambda x: x.process_index, otypes=[int])(mesh.devices)
    names = list(mesh.axis_names)
    crossing = [a for a in axes if np.ptp(processes, names.index(a)).any()]
    return tuple(crossing) or axes


def describe_collectives(program: Any, axes: Sequence[str]) -> str:
    """Describes the collectives of XLA in a program over some axes; "" without any.

    Args:
      program: a jaxpr.
      axes: the axes.
    """
    places: dict[str, None] = {}
    for equation in equations_in(program):
        name = name_of(equation)
        over = axes_of(equation)
        if name in COLLECTIVES and not set(axes).isdisjoint(over):
            places[f"{name} at {lowering.place(equation)}"] = None
    if not places:
        return ""
    shown = ", ".join(list(places)[:_PLACES_MAX])
    if len(places) > _PLACES_MAX:
        shown += f" and {len(places) - _PLACES_MAX} more"
    return (
        f"a program with calls over {', '.join(map(repr, axes))} also has collectives "
        f"of XLA over it: {shown}. These have no deadline: each waits for the slowest "
        "rank, and the death of a rank ends the program there. Write "
        "jax_optireduce.psum or pmean in your own code; take the axis out of library "
        "code (axis_name=None, cross_replica_axis=None of a batch norm), and average "
        "its statistics: docs/hybrid.md, Dropout and batch norm."
    )


# --- Accumulation --------------------------------------------------------------------


class _Node(NamedTuple):
    """An equation, for the flow of values.

    Attributes:
      inputs: its variables.
      outputs: its variables.
      calls: in it.
      inner: the jaxpr that it calls once, with the same inputs, as `jit` does.
    """

    inputs: list[Any]
    outputs: list[Any]
    calls: list[Call]
    inner: "_Graph | None"


class _Graph(NamedTuple):
    """A jaxpr, for the flow of values.

    Attributes:
      inputs: its variables.
      outputs: its variables, and None for literals.
      nodes: its equations.
    """

    inputs: list[Any]
    outputs: list[Any]
    nodes: list[_Node]

    def calls(self) -> list[Call]:
        """Returns the calls in it."""
        return [call for node in self.nodes for call in node.calls]


def describe_accumulation(equation: Any) -> str:
    """Describes a scan that adds up the results of a call; "" of another equation.

    The operands of the call depend on no result of a call in an earlier turn, as those
    of the next step of a training do, and its results become carried values.
    """
    scan = lowering.scan_of(equation)
    if scan is None or scan.turns < 2:
        return ""
    graph = _graph(scan.body)
    calls = graph.calls()
    _, dependent = _followed_over_turns(scan, graph, {call.key for call in calls})
    independent = [
        call.key
        for call in calls
        if call.operation != "all_gather" and not call.drain and not call.derived
        if call.key not in dependent
    ]
    if not _followed_over_turns(scan, graph, set(independent))[0]:
        return ""
    added = (k for k in independent if _followed_over_turns(scan, graph, {k})[0])
    return (
        f"{next(added)!r} is called {scan.turns} times in a run of a program, by the "
        f"scan at {lowering.place(equation)}, which adds up the results: {scan.turns} "
        "times the bytes of one call. Add up the gradients of the parts first, and "
        "call once after the scan: docs/hybrid.md, Accumulated gradients."
    )


def _graph(jaxpr: Any) -> _Graph:
    outputs = [_variable(x) for x in jaxpr.outvars]
    return _Graph(list(jaxpr.invars), outputs, [_node(e) for e in jaxpr.eqns])


def _node(equation: Any) -> _Node:
    jaxprs = list(parts_of(equation))
    inner = None
    if len(jaxprs) == 1 and equation.primitive.name not in ("scan", "while"):
        same = len(jaxprs[0].invars) == len(equation.invars)
        inner = _graph(jaxprs[0]) if same else None
    within = (e for jaxpr in jaxprs for e in equations_in(jaxpr))
    found = (e.params.get("call") for e in (equation, *within))
    calls = [call for call in found if isinstance(call, Call)]
    inputs = [_variable(x) for x in equation.invars]
    return _Node(inputs, list(equation.outvars), calls, inner)


def _variable(x: Any) -> Any:
    """Returns a variable; of a literal, which has no hash, None."""
    return None if hasattr(x, "val") else x


def _followed_over_turns(
    scan: lowering.Scan, graph: _Graph, sources: set[str]
) -> tuple[set[int], set[str]]:
    """Follows the results of calls into the later turns of a scan; see `_followed`.

    Returns:
      The positions of the inputs of the body that depend on them, and the keys of the
      calls that do.
    """
    inputs: set[int] = set()
    while True:
        outputs, reached = _followed(graph, inputs, sources)
        carried = {scan.constants + i for i in outputs if i < scan.carried}
        if carried <= inputs:
            return inputs, reached
        inputs |= carried


def _followed(
    graph: _Graph, inputs: set[int], sources: set[str]
) -> tuple[set[int], set[str]]:
    """Follows values through a jaxpr.

    Args:
      graph: the jaxpr.
      inputs: positions of the followed inputs.
      sources: keys of the calls whose results are followed, too.

    Returns:
      The positions of the followed outputs, and the keys of the calls with a followed
      operand.
    """
    followed = {graph.inputs[i] for i in inputs}
    reached: set[str] = set()
    for node in graph.nodes:
        is_given = not followed.isdisjoint(node.inputs)
        if not is_given and not node.calls:
            continue
        if node.inner is not None:
            given = {i for i, x in enumerate(node.inputs) if x in followed}
            results, hits = _followed(node.inner, given, sources)
            reached |= hits
            followed.update(node.outputs[i] for i in results)
            continue
        keys = {call.key for call in node.calls}
        if is_given:
            reached |= keys
        if is_given or keys & sources:
            followed.update(node.outputs)
    return {i for i, x in enumerate(graph.outputs) if x in followed}, reached
