"""Finds decisions on values that may differ between ranks, such as the end of a loop.

In the modes "bounded" and "lossy" ranks may get different results. If such a result
decides whether a rank makes its next call, one rank ends the loop, the others take it
for dead and continue without it. So the compilation of a program is an error if the
condition of a `while_loop` or a `cond` depends on such a result, and a collective on
the condition. A collective that gives all ranks the same bits ends the dependence.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, Literal

from jax_optireduce._errors import UsageError
from jax_optireduce._jax import lowering
from jax_optireduce._program import jaxprs
from jax_optireduce._program.call import Call

# Modes in which the results of ranks may differ.
DIFFERING_MODES = ("bounded", "lossy")


class Source(NamedTuple):
    """A call whose results may differ.

    Attributes:
      axes: over which they differ.
      name: of the call.
      mode: of the call.
    """

    axes: tuple[str, ...]
    name: str
    mode: str


# The calls on which a value depends.
_Sources = frozenset[Source]

_NONE: _Sources = frozenset()


def check(ctx: Any) -> None:
    """Checks the program under lowering, once.

    Args:
      ctx: of the lowering of one of its calls.

    Raises:
      UsageError: a decision depends on a value that may differ between ranks.
    """
    program = lowering.program(ctx)
    if program is not None:
        _results(program, [_NONE] * len(program.invars))


def _results(jaxpr: Jaxpr, given: Sequence[_Sources]) -> list[_Sources]:
    """Returns the sources of the results of a part of the program."""
    known: dict[Any, _Sources] = dict(zip(jaxpr.invars, given, strict=True))

    def of(value: Any) -> _Sources:
        return _NONE if isinstance(value, Literal) else known.get(value, _NONE)

    for equation in jaxpr.eqns:
        operands = [of(value) for value in equation.invars]
        rule = _RULES.get(equation.primitive.name, _of_equation)
        known.update(zip(equation.outvars, rule(equation, operands), strict=True))
    return [of(value) for value in jaxpr.outvars]


def _of_equation(equation: Any, operands: list[_Sources]) -> list[_Sources]:
    """Returns the sources of the results of an equation without a rule."""
    together = _NONE.union(*operands)
    call = equation.params.get("call")
    if isinstance(call, Call):
        return _of_call(call, together, len(equation.outvars))
    if jaxprs.name_of(equation) in jaxprs.EQUALIZING:
        together = _without(together, jaxprs.axes_of(equation))
    parts = list(jaxprs.parts_of(equation))
    if len(parts) == 1 and len(parts[0].invars) == len(operands):
        results = _results(parts[0], operands)
        if len(results) == len(equation.outvars):
            return results
    for part in parts:
        together = together.union(*_results(part, [together] * len(part.invars)))
    return [together] * len(equation.outvars)


def _of_call(call: Call, operands: _Sources, results: int) -> list[_Sources]:
    """Returns the sources of sums, or of the token of a begun call.

    The statistics, the last result beside sums, have none.
    """
    if call.operation == "reduce_scatter":
        sums = operands
    else:
        sums = _without(operands, call.axes)
    if call.mode in DIFFERING_MODES:
        # It is the nearest cause, so an error names it rather than those before it.
        sums = sums | {Source(call.axes, call.key, call.mode)}
    return [*[sums] * (results - 1), _NONE] if results > 1 else [sums]


def _without(sources: _Sources, axes: Sequence[Any]) -> _Sources:
    """Returns the sources after a collective over `axes` with one result for all."""
    left = {
        source._replace(axes=tuple(axis for axis in source.axes if axis not in axes))
        for source in sources
    }
    return frozenset(source for source in left if source.axes)


def _of_while(equation: Any, operands: list[_Sources]) -> list[_Sources]:
    params = equation.params
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    of_condition = operands[: params["cond_nconsts"]]
    of_body = operands[params["cond_nconsts"] :][: params["body_nconsts"]]
    carried = operands[len(of_condition) + len(of_body) :]
    carried = _fixed(lambda given: _results(body, [*of_body, *given]), carried)
    (decision,) = _results(condition, [*of_condition, *carried])
    _check(decision, [condition, body], "while_loop")
    return [sources | decision for sources in carried]


def _of_scan(equation: Any, operands: list[_Sources]) -> list[_Sources]:
    scan = lowering.scan_of(equation)
    assert scan is not None  # noqa: S101 (by the rules)
    fixed = operands[: scan.constants]
    rows = operands[scan.constants + scan.carried :]

    def turn(given: list[_Sources]) -> list[_Sources]:
        return _results(scan.body, [*fixed, *given, *rows])

    carried = operands[scan.constants : scan.constants + scan.carried]
    carried = _fixed(lambda given: turn(given)[: scan.carried], carried)
    return [*carried, *turn(carried)[scan.carried :]]


def _of_cond(equation: Any, operands: list[_Sources]) -> list[_Sources]:
    decision, *given = operands
    branches = [branch.jaxpr for branch in equation.params["branches"]]
    _check(decision, branches, "cond")
    columns = zip(*(_results(branch, given) for branch in branches), strict=True)
    return [decision.union(*column) for column in columns]


_RULES = {"while": _of_while, "scan": _of_scan, "cond": _of_cond}


def _fixed(
    turn: Callable[[list[_Sources]], list[_Sources]], carried: list[_Sources]
) -> list[_Sources]:
    """Returns the sources of the carried values after any number of turns."""
    while True:
        after = [old | new for old, new in zip(carried, turn(carried), strict=True)]
        if after == carried:
            return carried
        carried = after


def _check(decision: _Sources, decided: Sequence[Jaxpr], kind: str) -> None:
    """Raises `UsageError` if a decision may differ where ranks make a call."""
    for source in sorted(decision):
        called = next(
            (
                name
                for part in decided
                for name, axes in _collectives(part)
                if set(axes) & set(source.axes)
            ),
            None,
        )
        if called is None:
            continue
        raise UsageError(
            f"the condition of a {kind} depends on the result of {source.name!r} in "
            f"mode {source.mode!r}, which may differ between ranks, and decides "
            f"whether a rank calls {called!r}: one rank would stop calling, and the "
            "others would wait for it, or continue without it. Let all ranks decide "
            "alike: write mode='agreed' or mode='exact' for that value, or let one "
            "such call decide: stop = psum(stop, axis, mode='agreed') > 0."
        )


def _collectives(jaxpr: Jaxpr) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yields the name and the axes of each collective in a part of the program."""
    for equation in jaxprs.equations_in(jaxpr):
        call = equation.params.get("call")
        name = jaxprs.name_of(equation)
        if isinstance(call, Call):
            yield call.key, call.axes
        elif name in jaxprs.COLLECTIVES:
            yield name, jaxprs.axes_of(equation)
