"""Calls of Python functions by programs on devices."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_optireduce import _jax_version
from jax_optireduce._errors import UsageError
from jax_optireduce._jax_version import explained

try:
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
    from jax.interpreters import mlir
except ImportError as missing:
    raise ImportError(_jax_version.moved(missing)) from missing

try:
    from jax._src import callback as _callback
except ImportError:  # The error below names the remedy.
    _callback = None


def call(
    function: Callable[..., Sequence[np.ndarray]],
    results: Sequence[Any],
    *operands: Any,
) -> list[Any]:
    """Calls a Python function on this host, once for each device; always.

    Unlike `jax.experimental.io_callback` the function receives NumPy arrays: there,
    arrays of 100,000 floats wait for ever on CPU devices.

    Args:
      function: of NumPy arrays; returns a sequence of them.
      results: shape and dtype of each result.
      *operands: arrays of one device, where all axes are manual.
    """
    types = tuple(ShapedArray(x.shape, x.dtype) for x in results)
    return _host_callback_p.bind(*operands, function=function, types=types)


@explained
def _lower_host_callback(ctx: Any, *operands: Any, function: Any, types: Any) -> Any:
    del types
    if _callback is None:
        raise UsageError(
            "this release of JAX has no callbacks for this package; install one of the "
            "range that python -m jax_optireduce doctor names."
        )
    context = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        # The others have one device, but JAX refuses them here.
        manual = frozenset(context.mesh.axis_names)
        context = dataclasses.replace(context, manual_axes=manual)
    sharding = _callback._callback_op_sharding(  # noqa: SLF001
        context, None, ctx.avals_out
    )
    results, _, _ = mlir.emit_python_callback(
        ctx,
        function,
        None,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=False,
        sharding=sharding,
    )
    return results


_host_callback_p = Primitive("optireduce_host_callback")
_host_callback_p.multiple_results = True
_host_callback_p.def_abstract_eval(lambda *_, types, **__: list(types))
# Not cacheable: on TPU each callback has a channel of its own.
mlir.register_lowering(_host_callback_p, _lower_host_callback, cacheable=False)
