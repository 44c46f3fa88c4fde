"""Results and errors of drains, and the warnings of sessions that end without one.

The last rank sleeps before each call, so that its data is late. Arguments: a scenario.

  conserved   calls of all kinds, and a drain of each
  forms       calls in every transformation that leaves data in flight, and their drains
  unfit       drains that match no call
  end <how>   calls, then the end of the session: "late", "values", "drained", "whole",
              or "error"

Prints

  "log <line>"                    for each line of the log
  "conserved <label> <largest error> <share late>"
                                  the total of all calls and the drain, compared with
                                  the contributions of all ranks, in whole numbers
  "refused <label>: <message>"    for each drain that failed
  "brought <label>"               for each drain that succeeded
"""

import functools
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np
from jax import lax

import jax_optireduce as jo

SLEEP_S = 0.1
CALLS = 6
# Whole numbers of this size stay exact in their sums, even in bfloat16.
LARGEST = 4

Tree = dict[str, Any]
Form = Callable[[Tree], tuple[Tree, Any]]


def rows(leaves: Tree, seed: int) -> list[Tree]:
    """Returns the contribution of each rank: whole numbers."""
    random = np.random.default_rng(seed)
    return [
        {
            name: random.integers(-LARGEST, LARGEST + 1, leaf.shape).astype(leaf.dtype)
            for name, leaf in leaves.items()
        }
        for _ in range(jax.device_count())
    ]


def own(x: jax.Array) -> np.ndarray:
    """Returns this process's row, in double precision."""
    (row,) = meshes.rows_here(x).values()
    return row.astype(np.float64)


def sleep_if_last(seconds: float = SLEEP_S) -> None:
    """Makes the data of one rank late."""
    if jax.process_index() == jax.process_count() - 1:
        time.sleep(seconds)


def check(
    label: str,
    leaves: Tree,
    call: Callable[[Any], tuple[Tree, jax.Array]],
    drain: Callable[[Any], Tree],
    *,
    scale: int = 1,
) -> None:
    """Makes the calls and the drain, and prints their outcome.

    Args:
        label: of the printed lines.
        leaves: shapes and dtypes.
        call: from a tree to its sums, and the share that was late.
        drain: from the tree to sums.
        scale: the number of times that a call sums its input.
    """
    mesh = meshes.make((jax.device_count(),), ("dp",))
    call, drain = meshes.mapped(mesh, call), meshes.mapped(mesh, drain)
    given = dict.fromkeys(leaves, 0.0)
    got = dict.fromkeys(leaves, 0.0)
    late = 0.0
    for number in range(CALLS):
        of_ranks = rows(leaves, number)
        stacked = jax.tree.map(lambda *x: np.stack(x), *of_ranks)
        tree = {name: meshes.spread(mesh, row) for name, row in stacked.items()}
        sleep_if_last()
        sums, share = jax.block_until_ready(call(tree))
        late += own(share).max()
        for name, row in stacked.items():
            given[name] += row.astype(np.float64).sum(0) * scale
            got[name] += own(sums[name])
    rest = drain(tree)
    error = max(
        np.abs(got[name] + own(rest[name]) - given[name]).max(initial=0.0)
        for name in leaves
    )
    print("conserved", label, error, f"{late / CALLS:.4f}", flush=True)


def share_late(stats: jo.CollectiveStats) -> jax.Array:
    """Returns the share of a call's data that was late."""
    return stats.missing_contributions + stats.missing_results


FLOATS = {"a": np.zeros((200, 100), "f4"), "b": np.zeros(5, "f4")}
MIXED = {
    **FLOATS,
    "count": np.zeros(3, "i4"),
    "half": np.zeros(500, jnp.bfloat16),
    "many": np.zeros(20_000, "i4"),
    "none": np.zeros((4, 0), "f4"),
    "number": np.zeros((), "f4"),
}
INTS = {"a": np.zeros(50_000, "i4"), "b": np.zeros((), "i4")}


def scaled(tree: Tree, ranks: int) -> Tree:
    """Returns the sums for means; those of integers pass unchanged."""
    return jax.tree.map(lambda x: x * ranks, tree)


def conserved() -> None:
    """All public functions, several dtypes and buckets, both modes."""
    ranks = jax.device_count()
    for mode in ("bounded", "agreed"):
        for name, leaves in (("floats", FLOATS), ("mixed", MIXED), ("ints", INTS)):
            how = {"mode": mode, "name": f"{name}, {mode}"}

            def psum(tree: Tree, how: Any = how) -> Any:
                sums, stats = jo.psum(tree, "dp", **how, return_stats=True)
                return sums, share_late(stats)

            def drain(tree: Tree, how: Any = how) -> Any:
                return jo.drain(tree, "dp", mean=False, **how)

            check(f"psum of {name}, {mode}:", leaves, psum, drain)
    means = {name: leaf for name, leaf in MIXED.items() if leaf.dtype != np.int32}

    def drain_of(name: str) -> Callable[[Tree], Tree]:
        return lambda tree: scaled(jo.drain(tree, "dp", name=name), ranks)

    def gradients(tree: Tree) -> Any:
        mean, stats = jo.average_gradients(
            tree, "dp", name="gradients", return_stats=True
        )
        return scaled(mean, ranks), share_late(stats)

    def with_optax(tree: Tree) -> Any:
        link = jo.optax_average_gradients("dp", name="optax")
        mean, state = link.update(tree, link.init(tree))
        return scaled(mean, ranks), share_late(state.last)

    check("average_gradients:", means, gradients, drain_of("gradients"))
    check("optax_average_gradients:", means, with_optax, drain_of("optax"))
    check("sync_in_backward:", means, in_backward, drain_of_parameters)


def parameters_of(tree: Tree) -> Tree:
    """The parameters include counters and a leaf that the loss does not use."""
    return {**tree, "step": jnp.zeros((), jnp.int32), "unused": jnp.zeros(7)}


def in_backward(tree: Tree) -> Any:
    """The gradient with respect to the parameters is the rank's contribution."""

    def loss(params: Tree) -> jax.Array:
        synced = jo.sync_in_backward(params, "dp", name="backward")
        parts = [(synced[n] * x).astype(jnp.float32).sum() for n, x in tree.items()]
        return sum(parts)

    gradient = jax.grad(loss, allow_int=True)(parameters_of(tree))
    mean = {name: gradient[name] for name in tree}
    return scaled(mean, jax.device_count()), jnp.zeros(())


def drain_of_parameters(tree: Tree) -> Tree:
    """The parameters have more leaves than the reduced gradients."""
    rest = jo.drain(parameters_of(tree), "dp", name="backward")
    return scaled({name: rest[name] for name in tree}, jax.device_count())


def bounded(tree: Tree, name: str) -> Tree:
    """The call of a form."""
    return jo.psum(tree, "dp", mode="bounded", name=name)


def rest_of(tree: Tree, name: str) -> Tree:
    """The drain of a form."""
    return jo.drain(tree, "dp", mean=False, name=name)


def rest_of_two(tree: Tree, name: str) -> Tree:
    """The drain of a program that makes two calls of one name."""
    first = rest_of(tree, name)
    return added(first, rest_of(first, name))


def added(a: Tree, b: Tree) -> Tree:
    """Returns the sum of two trees."""
    return jax.tree.map(jnp.add, a, b)


def in_scan(tree: Tree) -> Tree:
    """Three calls of one collective."""

    def body(total: Tree, _: Any) -> Any:
        return added(total, bounded(tree, "scan")), None

    return lax.scan(body, jax.tree.map(jnp.zeros_like, tree), length=3)[0]


def in_cond(tree: Tree) -> Tree:
    """Two calls, of which one is never made."""

    def other(tree: Tree) -> Tree:
        return jax.tree.map(lambda x: 2 * x, bounded(tree, "cond"))

    never = lax.axis_index("dp") < 0
    return lax.cond(never, other, lambda t: bounded(t, "cond"), tree)


def twice(tree: Tree) -> Tree:
    """Two consecutive calls."""
    first = bounded(tree, "twice")
    again = jax.tree.map(lambda x, total: x + 0 * total, tree, first)
    return added(first, bounded(again, "twice"))


def over_vmap(tree: Tree) -> Tree:
    """Over an axis that is also mapped within the process."""

    def both(tree: Tree) -> Tree:
        return jo.psum(tree, ("i", "dp"), mode="bounded", name="named vmap")

    pair = jax.tree.map(lambda x: jnp.stack([x, x]), tree)
    return jax.vmap(both, axis_name="i", out_axes=None)(pair)


def forms() -> None:
    """Calls inside transformations."""
    leaves = {"a": np.zeros(30_000, "f4"), "n": np.zeros(9, "i4")}
    batch = {"a": np.zeros((30, 1000), "f4"), "n": np.zeros((30, 9), "i4")}
    in_jit = jax.jit(lambda tree: bounded(tree, "jit"))
    in_checkpoint = jax.checkpoint(lambda tree: bounded(tree, "checkpoint"))
    in_vmap = jax.vmap(lambda tree: bounded(tree, "vmap"))
    for name, form, drain, given, scale in (
        ("scan", in_scan, rest_of, leaves, 3),
        ("cond", in_cond, rest_of_two, leaves, 1),
        ("jit", in_jit, rest_of, leaves, 1),
        ("checkpoint", in_checkpoint, rest_of, leaves, 1),
        ("twice", twice, rest_of_two, leaves, 2),
        ("vmap", in_vmap, jax.vmap(rest_of, in_axes=(0, None)), batch, 1),
        ("named vmap", over_vmap, rest_of, leaves, 2),
    ):
        check(
            f"{name}:",
            given,
            lambda tree, form=form: (form(tree), jnp.zeros(())),
            lambda tree, drain=drain, name=name: drain(tree, name),
            scale=scale,
        )
    check_pmap(jax.device_count())


def check_pmap(ranks: int) -> None:
    """Under `jax.pmap`, with one device for each process."""
    psum = jax.pmap(
        lambda x: jo.psum(x, "dp", mode="bounded", name="pmap"), axis_name="dp"
    )
    drain = jax.pmap(
        lambda x: jo.drain(x, "dp", mean=False, name="pmap"), axis_name="dp"
    )
    row = np.full((1, 30_000), jax.process_index() + 1, np.float32)
    got = 0.0
    for _ in range(CALLS):
        sleep_if_last()
        got += np.asarray(psum(row))
    got += np.asarray(drain(row))
    error = np.abs(got - CALLS * ranks * (ranks + 1) / 2).max()
    print("conserved pmap:", error, 0, flush=True)


def unfit() -> None:
    """Drains that match no call, then matching ones, which still return all data."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    leaf = np.ones((jax.device_count(), 20_000), np.float32)
    x = meshes.spread(mesh, leaf)

    def attempt(label: str, tree: Any, **how: Any) -> Any:
        try:
            rest = meshes.mapped(mesh, lambda t: jo.drain(t, "dp", **how))(tree)
            jax.block_until_ready(rest)
        except meshes.CALL_ERRORS as error:
            print(f"refused {label}:", str(error).splitlines()[0], flush=True)
        else:
            print("brought", label, flush=True)
            return rest

    attempt("before any call", x, name="gradients")
    calls = {
        "gradients": {"mode": "bounded"},
        "equal": {"mode": "agreed"},
        "eight": {"mode": "bounded", "wire_format": "int8"},
        "loss": {"mode": "exact"},
    }
    got = dict.fromkeys(calls, 0.0)
    for _ in range(CALLS):
        sleep_if_last()
        for name, how in calls.items():
            psum = functools.partial(jo.psum, axis_name="dp", name=name, **how)
            got[name] += own(meshes.mapped(mesh, psum)(x))
    attempt("typo", x, name="gradeints")
    attempt("stranger", x, name="xyz")
    attempt("mode", x, name="equal")
    attempt("exact", x, name="gradients", mode="exact")
    attempt("wire format", x, name="eight")
    attempt("shape", x[:, :5], name="gradients")
    attempt("dtype", x.astype(jnp.bfloat16), name="gradients")
    attempt("more leaves", {"a": x, "b": x}, name="gradients")
    attempt("of exact", x, name="loss")
    attempt("exact of exact", x, name="loss", mode="exact")
    attempt("lossy", x, name="never called", mode="lossy")
    for name, how in calls.items():
        rest = attempt(f"right {name}", x, name=name, mean=False, **how)
        error = np.abs(got[name] + own(rest) - CALLS * jax.device_count()).max()
        print(f"conserved right {name}: {error} 0", flush=True)


def end(how: str) -> None:
    """The end of a session."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    x = meshes.spread(mesh, np.ones((jax.device_count(), 200_000), np.float32))
    reduce = jo.pmean if how == "values" else jo.psum
    call = meshes.mapped(mesh, lambda t: reduce(t, "dp", mode="bounded", name="grads"))
    drain = meshes.mapped(mesh, lambda t: jo.drain(t, "dp", name="grads"))
    if how in ("late", "values"):
        # The others end before its first call.
        sleep_if_last(20 * SLEEP_S)
    for _ in range(CALLS):
        if how != "whole":
            sleep_if_last()
        jax.block_until_ready(call(x))
    if how == "drained":
        jax.block_until_ready(drain(x))
    if how == "error":
        raise ArithmeticError("of the program")


logging.basicConfig(format="log %(message)s")
jo.init()
scenario, *arguments = sys.argv[1:]
{"conserved": conserved, "forms": forms, "unfit": unfit, "end": end}[scenario](
    *arguments
)
