"""Two costs of a program that its results do not show, found when a call is lowered.

A scan that adds up the results of a call sends as many times the bytes as it has turns.
Collectives of XLA over the axis of the call, in library code such as batch norm, have
neither a deadline nor a way on after a death. The log of rank 0 names each case once.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax_optireduce import _communicator
from jax_optireduce._call import Call
from jax_optireduce._jax import lowering

_log = logging.getLogger("jax_optireduce")

# Collectives that wait for other devices, by the names of their primitives.
_COLLECTIVES = {
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "pmax",
    "pmin",
    "ppermute",
    "psum",
    "psum_invariant",
    "ragged_all_to_all",
    "reduce_scatter",
}

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
    if _communicator.current(call.kind).rank:
        return
    around, program = lowering.enclosing_equations()
    if call.operation != "all_gather" and not call.drain and not call.derived:
        for equation in around:
            # A scan may have several calls.
            _log_once(lowering.place(equation), describe_accumulation(equation, call))
    axes = call.axes
    if program is not None and not lowering.next_ordinal(ctx, f"checked {axes}"):
        line = describe_collectives(program, axes)
        _log_once(line, line)


def _log_once(subject: str, line: str) -> None:
    if line and subject not in _logged:
        _logged.add(subject)
        _log.warning("%s", line)


# --- Collectives of XLA --------------------------------------------------------------


def describe_collectives(program: Any, axes: Sequence[str]) -> str:
    """Describes the collectives of XLA in a program over some axes; "" without any.

    Args:
      program: a jaxpr.
      axes: the axes.
    """
    places: dict[str, None] = {}
    for equation in _equations(program):
        name = equation.primitive.name
        if name in _COLLECTIVES and not set(axes).isdisjoint(_axes_of(equation)):
            name = name.removesuffix("_invariant")
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


def _axes_of(equation: Any) -> tuple[Any, ...]:
    params = equation.params
    axes = params.get("axes", params.get("axis_name", ()))
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a jaxpr and of the jaxprs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in _jaxprs_of(equation):
            yield from _equations(inner)


def _jaxprs_of(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield inner


# --- Accumulation --------------------------------------------------------------------


def describe_accumulation(equation: Any, call: Call) -> str:
    """Describes a scan that adds up the results of a call; "" of another equation.

    The operands of the call depend on no result of a call in an earlier turn, as those
    of the next step of a training do, and its results become carried values.

    Args:
      equation: around the call.
      call: the call.
    """
    turns = equation.params.get("length", 0)
    if equation.primitive.name != "scan" or turns < 2:
        return ""
    _, depends = _followed_over_turns(equation, lambda _: True, call.key)
    kept, _ = _followed_over_turns(equation, lambda key: key == call.key, call.key)
    if depends or not kept:
        return ""
    return (
        f"{call.key!r} is called {turns} times in a run of a program, by the scan at "
        f"{lowering.place(equation)}, which adds up the results: {turns} times the "
        "bytes of one call. Add up the gradients of the parts first, and call once "
        "after the scan: docs/hybrid.md, Accumulated gradients."
    )


def _followed_over_turns(
    scan: Any, is_source: Callable[[str], bool], key: str
) -> tuple[set[int], bool]:
    """Follows the results of calls into the later turns of a scan; see `_followed`.

    Returns:
      The positions of the inputs of the body that depend on them, and whether the call
      with this key does.
    """
    body = scan.params["jaxpr"].jaxpr
    first = scan.params["num_consts"]
    inputs: set[int] = set()
    while True:
        outputs, reached = _followed(body, inputs, is_source, key)
        carried = {first + i for i in outputs if i < scan.params["num_carry"]}
        if carried <= inputs:
            return inputs, reached
        inputs |= carried


def _followed(
    jaxpr: Any, inputs: set[int], is_source: Callable[[str], bool], key: str
) -> tuple[set[int], bool]:
    """Follows values through a jaxpr.

    Args:
      jaxpr: the jaxpr.
      inputs: positions of the followed inputs.
      is_source: whether the results of the call with this key are followed, too.
      key: of a call.

    Returns:
      The positions of the followed outputs, and whether the call with this key has a
      followed operand.
    """
    followed = {jaxpr.invars[i] for i in inputs}
    reached = False
    for equation in jaxpr.eqns:
        given = _positions(equation.invars, followed)
        if inner := _inlined(equation):
            results, hit = _followed(inner, given, is_source, key)
        else:
            keys = _keys(equation)
            is_followed = bool(given) or any(map(is_source, keys))
            results = set(range(len(equation.outvars))) if is_followed else set()
            hit = bool(given) and key in keys
        reached |= hit
        followed |= {equation.outvars[i] for i in results}
    return _positions(jaxpr.outvars, followed), reached


def _positions(variables: Sequence[Any], followed: set[Any]) -> set[int]:
    # Literals have a value, and no hash.
    return {
        i for i, x in enumerate(variables) if not hasattr(x, "val") and x in followed
    }


def _inlined(equation: Any) -> Any:
    """Returns the jaxpr that an equation calls once, as `jit` does, or None."""
    jaxprs = list(_jaxprs_of(equation))
    if len(jaxprs) != 1 or equation.primitive.name in ("scan", "while"):
        return None
    return jaxprs[0] if len(jaxprs[0].invars) == len(equation.invars) else None


def _keys(equation: Any) -> list[str]:
    """Returns the keys of the calls in an equation."""
    inner = (e for jaxpr in _jaxprs_of(equation) for e in _equations(jaxpr))
    calls = (e.params.get("call") for e in (equation, *inner))
    return [call.key for call in calls if isinstance(call, Call)]
