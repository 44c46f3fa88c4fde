"""For programs without `shard_map`: regions where only the slow axis is manual."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

import jax
from jax.sharding import Mesh, PartitionSpec

from jax_optireduce._argument_types import Mode, WireFormat
from jax_optireduce._calls import collectives
from jax_optireduce._errors import UsageError, did_you_mean
from jax_optireduce._jax import shard_types
from jax_optireduce._program import checks
from jax_optireduce._program.call import AxisName
from jax_optireduce._stats import CollectiveStats

_P = ParamSpec("_P")
_R = TypeVar("_R")


def over_slow_axis(
    function: Callable[_P, _R],
    axis_name: AxisName,
    *,
    batch_argnums: int | Sequence[int] = (),
    batch_spec: PartitionSpec | None = None,
    mesh: Mesh | None = None,
) -> Callable[_P, _R]:
    """Runs a function where one axis of the mesh is manual, for calls over this axis.

    The compiler shards the data over the other axes, as in the program around it. In a
    jitted program without `jax.shard_map`::

        means = over_slow_axis(
            lambda tree: jax_optireduce.pmean(tree, "data", mode="bounded"), "data"
        )(metrics)

    Equivalent to `jax.shard_map` with `axis_names={axis_name}`, the batch divided over
    the axis, and `check_vma=False`.

    Args:
      function: its results are the same on all ranks of the axis, or nearly so (modes
        "bounded" and "lossy"): the result of a call of this package, or computed from
        it.
      axis_name: an axis of the mesh or a tuple of them: the slow network.
      batch_argnums: positions of the arguments that are divided over the axis. Other
        arguments are whole on every rank.
      batch_spec: the dimension along which all of their leaves are divided: of leaves
        [parts, batch, ...] `PartitionSpec(None, axis_name)`. Other axes in it have no
        effect. None: the first dimension.
      mesh: the mesh; None takes that of `jax.set_mesh`.

    Returns:
      A function with the same arguments and results; call it inside `jax.jit`.

    Raises:
      UsageError: when it is called: without a mesh, with an unknown axis, with a
        `batch_spec` that does not name the axis, or if a constraint inside names it.
    """
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    batch = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    inside: Callable[..., _R] = function

    @functools.wraps(function)
    def mapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        _check_axes(axes, mesh)
        if batch and not -len(args) <= min(batch) <= max(batch) < len(args):
            raise UsageError(
                f"batch_argnums={batch_argnums}, but the call has {len(args)} "
                "positional arguments; pass the batch by position."
            )
        divided = {i % len(args) for i in batch}
        of_batch = _checked_batch_spec(batch_spec, axes)
        specs = tuple(
            of_batch if i in divided else PartitionSpec() for i in range(len(args))
        )
        region = jax.shard_map(
            lambda args, kwargs: inside(*args, **kwargs),
            mesh=mesh,
            in_specs=(specs, PartitionSpec()),
            out_specs=PartitionSpec(),
            axis_names=set(axes),
            check_vma=False,
        )
        with _explained_constraints(axes):
            return region(args, kwargs)

    return mapped


@contextlib.contextmanager
def _explained_constraints(axes: tuple[Any, ...]) -> Iterator[None]:
    """Explains JAX's errors about a constraint that names an axis of the region."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        said = str(error)
        named = [axis for axis in axes if repr(axis) in said]
        if not named or not ("with_sharding_constraint" in said or "reshard" in said):
            raise
        raise UsageError(
            f"a sharding constraint inside of this region names {named[0]!r}. There "
            "each rank has its own part of the batch, and the compiler shards over the "
            "other axes only. Leave this axis out of constraints and logical axis "
            "rules: PartitionSpec(None, ...) for PartitionSpec("
            f"{named[0]!r}, ...). With Flax, write inside of the function "
            "`with flax.linen.logical_axis_rules(rules):`, with rules that map no name "
            f"to {named[0]!r}: ('batch', None) for ('batch', {named[0]!r})."
        ) from error


def _checked_batch_spec(
    given: PartitionSpec | None, axes: tuple[Any, ...]
) -> PartitionSpec:
    """Returns the spec of the batch, with the slow axes alone.

    Raises:
      UsageError: it is no spec, or names another number of the axes than all.
    """
    if given is None:
        return PartitionSpec(axes)
    entries: list[Any] = []
    if isinstance(given, PartitionSpec):
        for entry in given:
            names = entry if isinstance(entry, tuple) else (entry,)
            entries.append(tuple(name for name in names if name in axes) or None)
    named = [name for entry in entries if entry for name in entry]
    if sorted(named, key=str) != sorted(axes, key=str):
        wanted = ", ".join(map(repr, axes))
        raise UsageError(
            f"batch_spec={given!r} must be a PartitionSpec that names {wanted}: for a "
            f"batch [parts, batch, ...] write PartitionSpec(None, {wanted})."
        )
    return PartitionSpec(*entries)


def _check_axes(axes: tuple[Any, ...], mesh: Mesh | None) -> None:
    """Raises `UsageError` unless the mesh has the axes, and they are not manual."""
    known = (
        dict.fromkeys(mesh.axis_names) if mesh is not None else shard_types.mesh_axes()
    )
    if not known:
        raise UsageError(
            "there is no mesh here; pass mesh=, or call jax.set_mesh(mesh) before the "
            "program."
        )
    for axis in axes:
        if axis not in known:
            names = [str(name) for name in known]
            raise UsageError(
                f"the mesh has no axis {axis!r}; it has {', '.join(names)}."
                + did_you_mean(str(axis), names)
            )
    manual = [axis for axis, (_, manual) in shard_types.mesh_axes().items() if manual]
    if manual:
        raise UsageError(
            f"the axes {manual} are manual here already, inside jax.shard_map: call "
            "average_gradients or pmean there directly."
        )


class _RegionArguments(TypedDict, total=False):
    argnums: int | Sequence[int]
    has_aux: bool
    batch_argnums: int | Sequence[int]
    batch_spec: PartitionSpec | None
    mesh: Mesh | None
    mode: Mode | None
    wire_format: WireFormat
    name: str | None
    specs: Any


@overload
def value_and_grad(
    function: Callable[_P, _R],
    axis_name: AxisName,
    *,
    return_stats: Literal[False] = False,
    **arguments: Unpack[_RegionArguments],
) -> Callable[_P, tuple[_R, Any]]: ...
@overload
def value_and_grad(
    function: Callable[_P, _R],
    axis_name: AxisName,
    *,
    return_stats: Literal[True],
    **arguments: Unpack[_RegionArguments],
) -> Callable[_P, tuple[tuple[_R, Any], CollectiveStats]]: ...
def value_and_grad(
    function: Callable[..., Any],
    axis_name: AxisName,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] = 1,
    batch_spec: PartitionSpec | None = None,
    mesh: Mesh | None = None,
    mode: Mode | None = None,
    wire_format: WireFormat = "float32",
    name: str | None = None,
    specs: Any = None,
    return_stats: bool = False,
) -> Callable[..., Any]:
    """Replaces `jax.value_and_grad` in a jitted program without `shard_map`.

    Each rank of the axis computes the value and the gradients of its part of the batch,
    and one call averages them over the axis; another one averages the value. For the
    other axes the program stays as it is: parameters may be sharded over them::

        loss, gradients = jax_optireduce.value_and_grad(loss_fn, "data")(params, batch)

    Differs from `jax.value_and_grad` in:

    * The value is the mean of the parts', so the function has to average over its
      batch, and parts of equal size; gradients alike. `aux` is averaged, too, integers
      in float32.
    * In the modes "bounded" and "lossy" the results may differ between the ranks, by
      the data that each of them misses. So parameters and the state of the optimizer
      must not be sharded over this axis; `resync` makes replicas equal again. In
      "bounded" the value and `aux` are means of those that have come, see `pmean`.
    * A key of `jax.random` is the same on all ranks, and draws the same mask for each
      part of the batch. Fold `jax.lax.axis_index(axis_name)` into it.

    Args:
      function: as in `jax.value_and_grad`.
      axis_name: an axis of the mesh or a tuple of them: the slow network.
      argnums: as in `jax.value_and_grad`.
      has_aux: as in `jax.value_and_grad`.
      batch_argnums: see `over_slow_axis`.
      batch_spec: see `over_slow_axis`.
      mesh: see `over_slow_axis`.
      mode: see `CallArguments`; of the value, too.
      wire_format: see `CallArguments`; of the gradients.
      name: see `CallArguments`; of the gradients. The value has the suffix " value".
      specs: see `CallArguments`; those of the parameters.
      return_stats: whether to return the statistics of the gradients.

    Returns:
      A function as that of `jax.value_and_grad`; with `return_stats` it returns the
      pair of the results and `CollectiveStats`. Call it inside `jax.jit`.

    Raises:
      UsageError: see `psum`; when it is called, see `over_slow_axis`.
    """
    kind = "value_and_grad"
    key = checks.checked_key(name, kind)
    differentiated = jax.value_and_grad(function, argnums=argnums, has_aux=has_aux)

    def local(*args: Any, **kwargs: Any) -> Any:
        value, gradients = differentiated(*args, **kwargs)
        call = checks.checked_call(kind, axis_name, key, mode, wire_format)
        reduction = collectives.reduce_tree(gradients, None, call, specs=specs)
        of_value = checks.checked_call(
            kind, axis_name, f"{key} value", mode, of_values=True
        )
        value = collectives.reduce_tree(value, None, of_value).tree
        results = value, reduction.tree
        return (results, reduction.stats()) if return_stats else results

    return over_slow_axis(
        local,
        axis_name,
        batch_argnums=batch_argnums,
        batch_spec=batch_spec,
        mesh=mesh,
    )
