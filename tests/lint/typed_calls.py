"""The types of the public calls for a type checker; checked, and never run.

A mistake that the checker does not find makes its `ignore` unnecessary, which is an
error.
"""

import dataclasses
from typing import Any, assert_type

import jax
import optax

import jax_optireduce
from jax_optireduce import CollectiveStats, average_gradients, pmean, psum


@dataclasses.dataclass
class Params:
    """A tree with a type of its own."""

    weight: jax.Array


def results(x: Any, known: bool) -> None:
    """Asserts the types of the results of collectives with `return_stats`."""
    for reduce in (psum, pmean, average_gradients):
        assert_type(reduce(x, "dp", return_stats=True), tuple[Any, CollectiveStats])
        _, stats = reduce(x, "dp", mode="bounded", name="g", return_stats=True)
        assert_type(stats, CollectiveStats)
        assert_type(reduce(x, ("dp", "tp"), step=3), Any)
        reduce(x, "dp", return_stats=known)


def trees(params: Params, batch: jax.Array) -> None:
    """Asserts that a call returns the type of tree that it gets."""
    assert_type(average_gradients(params, "dp"), Params)
    assert_type(psum(batch, "dp", return_stats=True), tuple[jax.Array, CollectiveStats])
    assert_type(pmean({"loss": batch}, "dp"), dict[str, jax.Array])
    assert_type(jax_optireduce.sync_in_backward(params, "dp"), Params)
    assert_type(jax_optireduce.psum_scatter(batch, "dp"), jax.Array)
    assert_type(jax_optireduce.all_gather(params, "dp"), Params)
    handle = jax_optireduce.begin(params, "dp")
    assert_type(jax_optireduce.end(handle), Params)
    assert_type(
        jax_optireduce.end(handle, return_stats=True), tuple[Params, CollectiveStats]
    )


def regions(params: Params, batch: jax.Array) -> None:
    """Asserts that regions keep the arguments and results of their functions."""

    def loss_fn(params: Params, batch: jax.Array) -> jax.Array:
        return (params.weight * batch).sum()

    loss, _ = jax_optireduce.value_and_grad(loss_fn, "dp")(params, batch)
    assert_type(loss, jax.Array)
    with_stats = jax_optireduce.value_and_grad(loss_fn, "dp", return_stats=True)
    _, stats = with_stats(params, batch)
    assert_type(stats, CollectiveStats)
    over = jax_optireduce.over_slow_axis(loss_fn, "dp")
    assert_type(over(params, batch), jax.Array)
    over(params)  # pyright: ignore[reportCallIssue]


def settings() -> None:
    """Asserts that options have types."""
    jax_optireduce.init(mode="bounded", peer_timeout_s=20, lanes=2)
    jax_optireduce.Options(lanes="2")  # pyright: ignore[reportArgumentType]
    jax_optireduce.Options(lane=2)  # pyright: ignore[reportCallIssue]
    jax_optireduce.Options(backend="nccl")  # pyright: ignore[reportArgumentType]


def mistakes_in_options() -> None:
    """Makes the usual mistakes in the arguments of `init`."""
    jax_optireduce.init(peer_timeout=20)  # pyright: ignore[reportCallIssue]
    jax_optireduce.init(deadline_s="0.1")  # pyright: ignore[reportArgumentType]
    jax_optireduce.init(mode="bonded")  # pyright: ignore[reportArgumentType]
    jax_optireduce.init(security="encrypt")  # pyright: ignore[reportArgumentType]


def mistakes_in_calls(params: Params) -> None:
    """Makes the usual mistakes in the arguments and results of calls."""
    psum(params, "dp", modes="exact")  # pyright: ignore[reportCallIssue]
    pmean(params, "dp", mode=3)  # pyright: ignore[reportArgumentType]
    psum(params, "dp", mode="bonded")  # pyright: ignore[reportArgumentType]
    psum(params, "dp", wire_format="float16")  # pyright: ignore[reportArgumentType]
    # No `return_stats`, so no pair.
    _, _ = average_gradients(params, "dp")  # pyright: ignore[reportGeneralTypeIssues]
    _ = psum(params, "dp").wieght  # pyright: ignore[reportAttributeAccessIssue]
    jax_optireduce.end(params)  # pyright: ignore[reportArgumentType]
    optax.chain(
        jax_optireduce.optax_average_gradients(
            "dp",
            hadamard="yes",  # pyright: ignore[reportArgumentType]
        ),
    )
