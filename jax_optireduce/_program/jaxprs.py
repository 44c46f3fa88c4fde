"""Jaxprs: the programs in their equations, and the collectives of JAX among these."""

from collections.abc import Iterator
from typing import Any

# Collectives of JAX that give all ranks the same result, by the names of their
# primitives without "_invariant".
EQUALIZING = {"all_gather", "pmax", "pmin", "psum"}

# All that wait for other ranks.
COLLECTIVES = EQUALIZING | {
    "all_to_all",
    "ppermute",
    "ragged_all_to_all",
    "reduce_scatter",
}


def name_of(equation: Any) -> str:
    """Returns the name of an equation's primitive, without that of a type rule."""
    return equation.primitive.name.removesuffix("_invariant")


def axes_of(equation: Any) -> tuple[Any, ...]:
    """Returns the axes of a collective of JAX."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def parts_of(equation: Any) -> Iterator[Any]:
    """Yields the jaxprs in an equation, such as that of `jax.jit`."""
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield inner


def equations_in(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a jaxpr and of the jaxprs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for part in parts_of(equation):
            yield from equations_in(part)
