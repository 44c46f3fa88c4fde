"""The rules that `allreduce_p` and the primitives of single stages share.

The operands of all three are (rank, step, *leaves), the results (*leaves, statistics).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_optireduce._errors import UsageError

# Sends some leaves, by their position: the results, and the statistics.
Send = Callable[[Mapping[int, Any]], Sequence[Any]]


def jvp(
    results: Sequence[Any], tangents: Sequence[Any], send: Send
) -> tuple[Sequence[Any], list[Any]]:
    """Sends the tangents that are not zero; returns results and tangents."""
    tangents_out = [ad.Zero(jax.typeof(r).to_tangent_aval()) for r in results]
    live = {i: t for i, t in enumerate(tangents[2:]) if not isinstance(t, ad.Zero)}
    if live:
        _set(tangents_out, live, send(live))
    return results, tangents_out


def transpose(
    cotangents: Sequence[Any], leaves: Sequence[Any], send: Send
) -> list[Any]:
    """Sends the cotangents that are not zero; returns those of all operands."""
    # The last cotangent is that of the statistics, which have no linear dependence.
    live = {
        i: ct
        for i, (ct, leaf) in enumerate(zip(cotangents[:-1], leaves, strict=True))
        if ad.is_undefined_primal(leaf) and not isinstance(ct, ad.Zero)
    }
    results: list[Any] = [
        ad.Zero(leaf.aval) if ad.is_undefined_primal(leaf) else None for leaf in leaves
    ]
    if live:
        _set(results, live, send(live))
    return [None, None, *results]


def _set(results: list[Any], live: Mapping[int, Any], sent: Sequence[Any]) -> None:
    for i, value in zip(live, sent, strict=False):
        results[i] = value


def check_step(dims: Sequence[Any]) -> None:
    """Raises `UsageError` if `jax.vmap` maps the step."""
    if dims[1] is not None:
        raise UsageError(
            "`step` was mapped by jax.vmap, but all elements of a batch are in one "
            "call; pass a step that does not depend on the mapped axis."
        )


def summed(
    leaves: Sequence[jax.Array], dims: Sequence[int | None], size: int
) -> list[jax.Array]:
    """Returns the sums over a batch of this size; a leaf without it is repeated."""
    return [
        leaf * size if dim is None else leaf.sum(dim).astype(leaf.dtype)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]


def register(
    primitive: Primitive,
    *,
    types: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
    batch: Callable[..., Any],
    lower: Callable[..., Any],
    platforms: Sequence[str],
) -> None:
    """Sets the rules of a primitive; `lower` gets the platform as an argument."""
    primitive.def_abstract_eval(types)
    primitive.def_impl(
        lambda *operands, **params: _jitted(primitive, **params)(*operands)
    )
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.fancy_primitive_batchers[primitive] = batch
    register_lowering(primitive, lower, platforms)


def register_lowering(
    primitive: Primitive, lower: Callable[..., Any], platforms: Sequence[str]
) -> None:
    """Sets the lowering of a primitive; `lower` gets the platform as an argument."""
    # Not cacheable: the rule must run once per equation, for the numbers of one key.
    mlir.register_lowering(primitive, _lower_elsewhere, cacheable=False)
    for platform in platforms:
        rule = functools.partial(lower, platform=platform)
        mlir.register_lowering(primitive, rule, platform=platform, cacheable=False)


@functools.cache
def _jitted(primitive: Primitive, **params: Any) -> Callable[..., Any]:
    """Returns the program of a call outside of programs, as over replicas."""
    return jax.jit(functools.partial(primitive.bind, **params))


def _lower_elsewhere(ctx: Any, *_: Any, **__: Any) -> Any:
    platforms = ", ".join(ctx.module_context.platforms)
    raise NotImplementedError(
        f"this version of jax_optireduce compiles for CPU, GPU and TPU, not for "
        f"{platforms}. Set JAX_OPTIREDUCE_BACKEND=xla there: every call becomes the "
        "jax.lax one."
    )
