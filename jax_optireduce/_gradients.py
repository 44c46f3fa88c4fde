"""Gradients: averaged after the backward pass, or in the middle of it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce import _checks, _collectives, _communicator, _compat, _primitive
from jax_optireduce._checks import AxisName
from jax_optireduce._stats import CollectiveStats


def allreduce_gradients(
    tree: Any,
    axis_name: AxisName,
    *,
    mode: str = "exact",
    step: Any = None,
    name: str | None = None,
) -> Any:
    """Averages gradients over a mapped axis, in buckets.

    Buckets hold at most `Options.bucket_bytes` and start with the last leaves, whose
    gradients the backward pass computes first: they travel while it goes on.

    Under check_vma=True the gradient of replicated parameters arrives here reduced
    already, which is an error; `sync_in_backward` is the form that fits there.

    Differs from `jax.lax.pmean` in: what `pmean` differs in, and the buckets.

    Args:
      tree: gradients: leaves of any shape, float32, bfloat16, float16 or float64.
      axis_name: see `psum`.
      mode: see `psum`.
      step: see `psum`; pass the optimizer's count where a rank may repeat a step.
      name: see `psum`.

    Returns:
      The mean gradients: the same tree, shapes and dtypes.

    Raises:
      AxisError: see `psum`.
      UsageError: see `psum`.
      NotInitializedError: see `psum`.
    """
    key = _checks.checked_key(name, "allreduce_gradients")
    return _average(tree, axis_name, "allreduce_gradients", key, mode, step).tree


def allreduce_gradients_with_stats(
    tree: Any,
    axis_name: AxisName,
    *,
    mode: str = "exact",
    step: Any = None,
    name: str | None = None,
) -> tuple[Any, CollectiveStats]:
    """Averages gradients over a mapped axis, in buckets, and reports how it went.

    Differs from `jax.lax.pmean` in: what `allreduce_gradients` differs in, and the
    second result.

    Args:
      tree: see `allreduce_gradients`.
      axis_name: see `psum`.
      mode: see `psum`.
      step: see `allreduce_gradients`.
      name: see `psum`.

    Returns:
      The mean gradients, and this rank's `CollectiveStats`.

    Raises:
      AxisError: see `psum`.
      UsageError: see `psum`.
      NotInitializedError: see `psum`.
    """
    key = _checks.checked_key(name, "allreduce_gradients")
    reduction = _average(tree, axis_name, "allreduce_gradients", key, mode, step)
    return reduction.tree, reduction.stats()


def sync_in_backward(
    params: Any,
    axis_name: AxisName,
    *,
    mode: str = "exact",
    step: Any = None,
    name: str | None = None,
) -> Any:
    """Returns the parameters unchanged, and averages their gradient on its way back.

    The data-parallel form that fits both values of check_vma. Inside `jax.shard_map`::

        def loss_fn(params):
            return loss(model(sync_in_backward(params, "data"), batch))


        grads = jax.grad(loss_fn)(params)  # the mean over "data", on every rank

    Differs from `jax.lax.pmean` in: the forward pass is the identity, and what
    `allreduce_gradients` differs in concerns the backward pass.

    Args:
      params: floating leaves are synchronised; others, which have no gradient, pass.
      axis_name: see `psum`.
      mode: see `psum`.
      step: see `allreduce_gradients`.
      name: see `psum`.

    Returns:
      The same tree. Under check_vma=True its leaves vary over the axis.

    Raises:
      AxisError: see `psum`.
      UsageError: see `psum`.
      NotInitializedError: see `psum`.
    """
    kind = "sync_in_backward"
    _communicator.current(kind)
    _checks.check_mode(mode)
    axes, _ = _checks.checked_axes(axis_name, kind)
    step = _checks.checked_step(step)
    key = _checks.checked_key(name, kind)
    leaves, treedef = jax.tree_util.tree_flatten(params)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    floating = {
        i: leaf
        for i, leaf in enumerate(leaves)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    }
    for i in set(range(len(leaves))) - set(floating):
        leaves[i] = _made_varying(leaves[i], axes)
    synced = _sync(axes, key, mode, tuple(floating.values()), step)
    for i, leaf in zip(floating, synced, strict=True):
        leaves[i] = leaf
    return jax.tree_util.tree_unflatten(treedef, leaves)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _sync(
    axes: tuple[str, ...], key: str, mode: str, leaves: tuple[Any, ...], step: Any
) -> tuple[Any, ...]:
    del key, mode, step  # For the backward pass.
    return tuple(_made_varying(leaf, axes) for leaf in leaves)


def _sync_forward(
    axes: tuple[str, ...], key: str, mode: str, leaves: tuple[Any, ...], step: Any
) -> tuple[Any, Any]:
    # The cotangent of a leaf must vary as the leaf does.
    varied = tuple(_missing_axes(leaf, axes) for leaf in leaves)
    return _sync(axes, key, mode, leaves, step), (step, _Static(varied))


def _sync_backward(
    axes: tuple[str, ...],
    key: str,
    mode: str,
    residuals: Any,
    cotangents: tuple[Any, ...],
) -> tuple[Any, Any]:
    step, static = residuals
    reduced = _average(cotangents, axes, "sync_in_backward", key, mode, step)
    means = tuple(
        _made_varying(mean, [axis for axis in axes if axis not in missing])
        for mean, missing in zip(reduced.tree, static.value, strict=True)
    )
    none = None if step is None else np.zeros((), jax.dtypes.float0)
    return means, none


_sync.defvjp(_sync_forward, _sync_backward)


@jax.tree_util.register_static
class _Static:
    """Carries what is no array from the forward to the backward pass."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


def _average(
    tree: Any,
    axis_name: AxisName,
    kind: str,
    key: str,
    mode: str,
    step: Any,
) -> _collectives.Reduction:
    return _collectives.reduce_tree(
        tree,
        axis_name,
        kind=kind,
        key=key,
        mode=mode,
        step=step,
        mean=True,
        reverse=True,
    )


def _missing_axes(x: Any, axes: Any) -> tuple[str, ...]:
    """Returns those of `axes` over which `x` should vary and does not."""
    if not _primitive.is_typed(axes):
        return ()
    varying = _compat.varying_axes(x)
    return tuple(a for a in _primitive.of_the_mesh(axes) if a not in varying)


def _made_varying(x: Any, axes: Any) -> Any:
    """Returns `x`, typed as varying over `axes` where JAX tracks that."""
    missing = _missing_axes(x, axes)
    return lax.pcast(x, missing, to="varying") if missing else x
