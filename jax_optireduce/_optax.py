"""The same as a link of an Optax chain."""

from typing import TYPE_CHECKING, Any

from jax_optireduce import _checks, _gradients
from jax_optireduce._checks import AxisName

if TYPE_CHECKING:
    import optax


def all_reduce_gradients(
    axis_name: AxisName,
    *,
    mode: str = "exact",
    name: str | None = None,
) -> "optax.GradientTransformationExtraArgs":
    """Averages the gradients over a mapped axis; put it first in the chain.

    Example::

        optimizer = optax.chain(all_reduce_gradients("data"), optax.sgd(0.1))

    Differs from `jax.lax.pmean` in: what `allreduce_gradients` differs in.

    Args:
      axis_name: see `psum`.
      mode: see `psum`.
      name: see `psum`; None takes the place of this call.

    Returns:
      A transformation without state. Its `update` takes `step=` as an extra argument,
      see `psum`.

    Raises:
      UsageError: the mode or the name does not fit. The other errors of
        `allreduce_gradients` come from `update`.
    """
    # Here and not above, so that programs without Optax do not pay for its import.
    import optax  # noqa: PLC0415

    _checks.check_mode(mode)
    key = _checks.checked_key(name, "all_reduce_gradients")

    def update(
        updates: Any, state: Any, params: Any = None, *, step: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        del params
        means = _gradients.allreduce_gradients(
            updates, axis_name, mode=mode, step=step, name=key
        )
        return means, state

    return optax.GradientTransformationExtraArgs(
        init=lambda _: optax.EmptyState(), update=update
    )
