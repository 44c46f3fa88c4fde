"""The types of the public calls for a type checker; checked, and never run."""

from typing import Any, assert_type

import jax_optireduce
from jax_optireduce import CollectiveStats, average_gradients, pmean, psum


def results(x: Any, known: bool) -> None:
    """Asserts the types of the results of collectives with `return_stats`."""
    for reduce in (psum, pmean, average_gradients):
        assert_type(reduce(x, "dp", return_stats=True), tuple[Any, CollectiveStats])
        _, stats = reduce(x, "dp", mode="bounded", name="g", return_stats=True)
        assert_type(stats, CollectiveStats)
        assert_type(reduce(x, ("dp", "tp"), step=3), Any)
        reduce(x, "dp", return_stats=known)
    psum(x, "dp", modes="exact")  # pyright: ignore[reportCallIssue]
    pmean(x, "dp", mode=3)  # pyright: ignore[reportArgumentType]


def settings() -> None:
    """Asserts that options have types."""
    jax_optireduce.Advanced(lanes=2)
    jax_optireduce.Advanced(lanes="2")  # pyright: ignore[reportArgumentType]
    jax_optireduce.Options(lanes=2)  # pyright: ignore[reportCallIssue]
