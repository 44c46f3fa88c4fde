r"""Runs the Python blocks of the pages, in one session of two processes.

    python -m jax_optireduce launch -n 2 --devices-per-process 2 \
      tests/examples/page_snippets.py [PAGE ...]

Each function is the context of a page: it defines the names that the blocks presume,
runs every block in the order of the page, and calls the functions that the blocks
define. A page with another number of blocks, or without a function, is an error.
"""

import ast
import contextlib
import functools
import io
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

# Their blocks are run by test_replicas_pages.py, and by test_tutorial.py with the
# changes that the page makes to them.
ELSEWHERE = {"docs/outer.md", "docs/replicas.md", "docs/tutorial.md"}


class Page:
    """The blocks of a page, and the namespace in which they run."""

    def __init__(self, path: str) -> None:
        """Reads the page."""
        self.path = path
        self.names: dict[str, Any] = {"jax": jax, "jax_optireduce": jax_optireduce}
        page = (ROOT / path).read_text()
        self._left = [
            (page.count("\n", 0, block.start(2)), block.group(2))
            for block in _BLOCK.finditer(page)
        ]

    def run(self, **context: Any) -> Any:
        """Runs the next block; returns the value of its last line, if it is one.

        A block that calls `init` begins a new session at each such line.

        Args:
          **context: names that the block presumes.
        """
        self.names.update(context)
        value = None
        for code, text in self._next():
            _begins(text)
            value = _execute(code, self.names)
        return value

    def run_in_step(
        self, results: str, where: jax.sharding.Mesh | None = None, **context: Any
    ) -> Any:
        """Runs the next block as a part of a mapped function.

        Args:
          results: names that the block defines, which are returned, as a tuple; "" for
            the value of the last line.
          where: the mesh.
          **context: arrays and trees of arrays that the block presumes.
        """
        statements = self._next()

        def step(arrays: dict[str, Any]) -> Any:
            names = self.names | arrays
            value = None
            for code, _ in statements:
                value = _execute(code, names)
            return tuple(names[name] for name in results.split()) or value

        return on_each_device(step, context, where=where)

    def run_in_jit(self, results: str, **context: Any) -> Any:
        """Runs the next block as a jitted function, without shard_map."""
        statements = self._next()
        for code, text in statements:
            if _begins(text):
                _execute(code, self.names)

        def program(arrays: dict[str, Any]) -> Any:
            names = self.names | arrays
            for code, text in statements:
                if "jax_optireduce.init(" not in text:
                    _execute(code, names)
            return tuple(names[name] for name in results.split())

        return jax.block_until_ready(jax.jit(program)(context))

    def postpone(self) -> None:
        """Puts the next block behind the one that follows it."""
        self._left[:2] = reversed(self._left[:2])

    def end(self) -> None:
        """Checks that every block was run."""
        assert not self._left, f"{self.path}: {len(self._left)} blocks were not run"

    def _next(self) -> list[tuple[Any, str]]:
        """Returns the statements of the next block, compiled, and their text."""
        line, text = self._left.pop(0)
        tree = ast.increment_lineno(ast.parse(text), line)
        made = []
        for node in tree.body:
            is_value = isinstance(node, ast.Expr)
            module = ast.Expression(node.value) if is_value else ast.Module([node], [])
            mode = "eval" if is_value else "exec"
            made.append((compile(module, self.path, mode), ast.unparse(node)))
        return made


def _begins(text: str) -> bool:
    """Whether a statement begins a session; then leaves the one before."""
    if "jax_optireduce.init(" not in text:
        return False
    jax_optireduce.shutdown()
    return True


def _execute(code: Any, names: dict[str, Any]) -> Any:
    """Runs code of this repository's pages; returns the value of an expression."""
    return eval(code, names)  # noqa: S307


PAGES: dict[str, Callable[[Page], None]] = {}


def page(path: str) -> Callable[[Callable[[Page], None]], Callable[[Page], None]]:
    """Registers the context of a page."""

    def register(context: Callable[[Page], None]) -> Callable[[Page], None]:
        PAGES[path] = context
        return context

    return register


def mesh(*names: str) -> jax.sharding.Mesh:
    """Returns all devices as one axis, or the processes and their devices as two."""
    shape = (jax.device_count(),)
    if len(names) == 2:
        shape = (jax.process_count(), jax.local_device_count())
    return jax.make_mesh(shape, names)


def on_each_device(
    function: Callable[..., Any],
    *arguments: Any,
    where: jax.sharding.Mesh | None = None,
) -> Any:
    """Calls a function on every device, with equal arguments; waits for its results."""
    specs = {"in_specs": P(), "out_specs": P(), "check_vma": False}
    mapped = jax.shard_map(function, mesh=where or mesh("data"), **specs)
    return jax.block_until_ready(jax.jit(mapped)(*arguments))


def loss_fn(params: Any, batch: Any) -> jax.Array:
    """The loss of a linear model."""
    x, y = batch
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def params() -> Any:
    """Returns the parameters of the model."""
    return {"w": np.ones((4, 8), np.float32), "b": np.zeros(8, np.float32)}


def batch() -> Any:
    """Returns examples and targets."""
    return np.ones((4, 4), np.float32), np.ones((4, 8), np.float32)


def divided(tree: Any, where: jax.sharding.Mesh, spec: P) -> Any:
    """Returns a tree of arrays of all processes, from one that each process has."""
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(
            x.shape, NamedSharding(where, spec), lambda index: x[index]
        ),
        tree,
    )


@page("README.md")
def _readme(blocks: Page) -> None:
    blocks.run()
    _, stats = blocks.run_in_step("grads stats", grads=params())
    assert stats.live_processes == jax.process_count()


@page("docs/accelerators.md")
def _accelerators(blocks: Page) -> None:
    where = mesh("data", "fsdp")
    blocks.names |= {"loss_fn": loss_fn, "mesh": where, "specs": P()}
    blocks.run_in_jit(
        "loss gradients",
        params=divided(params(), where, P()),
        batch=divided(batch(), where, P("data")),
    )
    blocks.run_in_step("means", params=params(), batch=batch())


@page("docs/checkpoints.md")
def _checkpoints(blocks: Page) -> None:
    blocks.run(mesh=mesh("data"))
    blocks.run(optax=optax)
    optimizer = blocks.names["optimizer"]

    def one(params: Any, state: Any, batch: Any) -> Any:
        gradients = jax.grad(loss_fn)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    where = mesh("data")
    copied = divided(params(), where, P())
    state = on_each_device(optimizer.init, copied)
    copied, state = on_each_device(one, copied, state, batch())
    folder = Path.cwd().parent
    blocks.run(params=copied, state=state, folder=folder, step=1)
    blocks.run()
    restored = blocks.names["restored"]["params"]
    kept = blocks.names["params"]
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, kept, restored)))
    blocks.run()
    if jax.process_index() == 1:  # One rank saves, without the others.
        checkpointer = blocks.names["checkpointer"]
        checkpointer.save(folder / "alone", kept)
        checkpointer.wait_until_finished()
        alone = checkpointer.restore(folder / "alone", kept)
        assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, kept, alone)))


@page("docs/coding.md")
def _coding(blocks: Page) -> None:
    x, y = batch()
    ranks = jax.process_count()
    context = {"RANKS": ranks, "BATCH": 2 * ranks, "inputs": x, "targets": y}
    losses = jax.vmap(lambda params, x, y: loss_fn(params, (x, y)), (None, 0, 0))
    blocks.run(losses=losses, **context)
    names = blocks.names
    state = names["coding"].start((params(), names["optimizer"].init(params())))
    # Each rank is a process.
    devices = [d for d in jax.devices() if d.id % jax.local_device_count() == 0]
    where = jax.sharding.Mesh(np.array(devices[:ranks]), ("data",))
    _, exact = on_each_device(
        names["step"], state, *names["batch_of"](0, 0), where=where
    )
    assert exact.addressable_data(0)


@page("docs/deadlines.md")
def _deadlines(blocks: Page) -> None:
    blocks.run()


@page("docs/errors.md")
def _errors(blocks: Page) -> None:
    saved = []
    jax_optireduce.shutdown()
    blocks.run(
        batches=[None] * 100,
        step=lambda params, state, _: (params + 1, state),
        save=lambda *saves: saved.append(saves),
        restored_or_fresh=lambda: (jnp.zeros(()), jnp.ones(())),
    )
    assert [number for number, *_ in saved] == [99]
    assert blocks.names["params"] == 100
    jax_optireduce.init()


class _Stateful(nnx.Module):
    """A module with statistics of batches and random state."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(4, 8, rngs=rngs)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs) -> jax.Array:
        return self.out(self.dropout(self.norm(x), rngs=rngs))


def _stateful_module(blocks: Page, batch: Any) -> None:
    """Runs a block that trains it, for a step; the mean of each feature is 1."""
    model = nnx.jit(lambda: _Stateful(nnx.Rngs(0)))()
    optimizer = optax.sgd(0.1)
    blocks.run(jnp=jnp, model=model, nnx=nnx, optax=optax, optimizer=optimizer)
    step, params, seen, rest = map(
        blocks.names.get, ("train_step", "params", "seen", "rest")
    )
    state = jax.jit(optimizer.init)(params)
    new, new_seen, *_ = step(params, seen, rest, state, batch, jax.random.key(0))
    assert not jnp.array_equal(new["out"]["bias"][...], params["out"]["bias"][...])
    assert jnp.allclose(new_seen["norm"]["mean"][...], 0.01)


@page("docs/hybrid.md")
def _hybrid(blocks: Page) -> None:
    where = mesh("data", "fsdp")
    copied = divided(params(), where, P())

    def step(params: Any, batch: Any) -> Any:
        gradients = jax.grad(loss_fn)(params, batch)
        return jax_optireduce.average_gradients(gradients, "data", name="gradients")

    with jax.set_mesh(where):
        mapped = blocks.run(step=step, P=P)
        jax.jit(mapped)(copied, divided(batch(), where, P("data")))
    blocks.names["average_gradients"] = jax_optireduce.average_gradients
    blocks.run_in_step("", where=where, gradients=copied)
    blocks.run()
    blocks.run(jnp=jnp, loss_fn=loss_fn, PARTS=3)
    accumulated = jax_optireduce.over_slow_axis(
        blocks.names["mean_gradients"],
        "data",
        batch_argnums=1,
        batch_spec=P(None, "data"),
        mesh=where,
    )
    parts = jax.tree.map(lambda x: np.stack([x] * 3), batch())
    parts = divided(parts, where, P(None, "data"))
    jax.block_until_ready(jax.jit(accumulated)(copied, parts))
    with jax.set_mesh(where):
        _stateful_module(blocks, divided(batch(), where, P("data")))
        blocks.run(jnp=jnp)
        pairs = divided(batch(), where, P("data"))[0]
        gradient = jax.shard_map(
            jax.grad(blocks.names["contrastive"]),
            in_specs=(P(), P("data"), P("data")),
            out_specs=P(),
            axis_names={"data"},
        )
        jax.jit(gradient)(jnp.ones((pairs.shape[1], 2)), pairs, pairs)
        one = jax_optireduce.over_slow_axis(
            lambda x: jax_optireduce.average_gradients(x, "data", name="gradients"),
            "data",
        )
        jax.block_until_ready(jax.jit(one)(copied))
        blocks.run_in_jit("drained", params=copied)
    jax_optireduce.shutdown()
    jax_optireduce.init()


@page("docs/is-the-network-my-problem.md")
def _network(blocks: Page) -> None:
    blocks.run()
    specs = {"in_specs": P(), "out_specs": P(), "check_vma": False}
    step = jax.jit(
        jax.shard_map(
            lambda x: jax_optireduce.psum(x, "data"), mesh=mesh("data"), **specs
        )
    )
    assert blocks.names["seconds_per_step"](step, np.ones(8, np.float32)) > 0
    jax_optireduce.shutdown()
    communicator = jax_optireduce.init()
    for _ in range(4):
        jax.block_until_ready(step(np.ones(8, np.float32)))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        blocks.run(communicator=communicator)
    assert re.match(r"\d+% of the time", printed.getvalue())


@page("docs/modes.md")
def _modes(blocks: Page) -> None:
    blocks.run(loss=loss_fn)
    on_each_device(blocks.names["step"], params(), batch())
    blocks.run(loss_fn=loss_fn, jnp=jnp)
    on_each_device(blocks.names["train"], params(), batch())
    optimizer = optax.sgd(0.1)
    blocks.run(optax=optax, optimizer=optimizer)
    state, gradients = optimizer.init(params()), jax.tree.map(jnp.ones_like, params())
    # Three gradients of 1 are one gradient of 3.
    found, _ = blocks.names["apply"](state, params(), gradients, jnp.int32(2))
    wanted = optax.apply_updates(params(), optimizer.update(gradients, state)[0])
    jax.tree.map(np.testing.assert_allclose, found, wanted)


@page("docs/observability.md")
def _observability(blocks: Page) -> None:
    blocks.run_in_step("gradients stats", gradients=params())
    blocks.run()
    assert Path("record.jsonl").read_text().startswith("{")
    blocks.run()
    report = types.SimpleNamespace(elapsed_s=np.float32(0.1))
    blocks.run(STEPS=3, step=lambda p, _: (p, report), params=params(), batch=batch())
    assert list(Path("runs").rglob("events*"))
    equal = {"w": np.ones(3, np.float32)}
    blocks.run(params=equal)
    (drift,) = blocks.run_in_step("drift", params=equal, number=jnp.int32(100))
    assert not np.asarray(drift).any()


@page("docs/overlap.md")
def _overlap(blocks: Page) -> None:
    blocks.run_in_step("means", gradients=params())
    where = mesh("data")
    blocks.run(
        loss_fn=loss_fn,
        mesh=where,
        P=P,
        params=divided(params(), where, P()),
        batches=[divided(batch(), where, P("data"))] * 2,
        RATE=0.1,
    )
    on_each_device(jax_optireduce.end, blocks.names["handle"])

    def layer(params: Any, x: jax.Array) -> jax.Array:
        return x @ params["w"] + params["b"]

    blocks.run(layer=layer, loss_of=lambda x, labels: jnp.mean((x - labels) ** 2))
    layers = [{"w": np.eye(4, dtype=np.float32), "b": np.zeros(4, np.float32)}]
    layers.append(params())

    def by_layer(layers: Any, batch: Any) -> Any:
        handles = [jax_optireduce.empty_handle(layer, "data") for layer in layers]
        for _ in range(2):
            layers, handles = blocks.names["step"](list(layers), handles, batch)
        return layers, [jax_optireduce.end(handle) for handle in handles]

    def network_loss(layers: Any, batch: Any) -> jax.Array:
        return loss_fn(layers[1], (layer(layers[0], batch[0]), batch[1]))

    updated, _ = on_each_device(by_layer, layers, batch())
    _check_sgd(updated, layers, jax.grad(network_loss)(layers, batch()))
    blocks.run()

    def acco(params: Any, first: Any, second: Any) -> Any:
        gradients = jax.grad(loss_fn)(params, first)
        handle = jax_optireduce.begin(gradients, "data", name="first halves")
        updated, handle = blocks.names["step"](params, handle, second, first)
        return updated, jax_optireduce.end(handle)

    updated, _ = on_each_device(acco, params(), batch(), batch())
    _check_sgd(updated, params(), jax.grad(loss_fn)(params(), batch()))


def _check_sgd(updated: Any, before: Any, gradients: Any) -> None:
    """Checks an update of a page with the rate 0.1."""
    wanted = jax.tree.map(lambda p, g: p - 0.1 * g, before, gradients)
    for got, leaf in zip(*map(jax.tree.leaves, (updated, wanted)), strict=True):
        np.testing.assert_allclose(got, leaf, rtol=1e-5)


@page("docs/safeguards.md")
def _safeguards(blocks: Page) -> None:
    blocks.run(optax=optax)
    optimizer = blocks.names["optimizer"]

    def one(params: Any) -> Any:
        return optimizer.update(params, optimizer.init(params), params)[0]

    on_each_device(one, params())
    blocks.run()
    link, optimizer, apply = (blocks.names[n] for n in ("link", "optimizer", "apply"))
    on_each_device(lambda p: apply(p, link.init(p), optimizer.init(p), p)[0], params())


@page("docs/sharded.md")
def _sharded(blocks: Page) -> None:
    def loss(params: Any, batch: Any) -> jax.Array:
        return loss_fn({"w": params, "b": 0.0}, batch)

    optimizer = optax.sgd(0.1, momentum=0.9)
    blocks.run(loss=loss, optimizer=optimizer)
    step = blocks.names["step"]
    part = jnp.ones((1, 8))
    state = optimizer.init(part)
    updated, _ = on_each_device(step, part, state, batch())
    blocks.run()
    got, _ = on_each_device(blocks.names["step"], part, state, batch())
    # Another order of the calls, not another step.
    np.testing.assert_allclose(got, updated, rtol=1e-6)
    blocks.run()
    on_each_device(blocks.names["end"], part, jnp.ones((4, 8)))
    blocks.run()
    psum_2d = blocks.names["psum_2d"]
    summed = on_each_device(
        lambda x: psum_2d(x, "fsdp", "data"),
        np.ones(4, np.float32),
        where=mesh("data", "fsdp"),
    )
    assert (summed == jax.device_count()).all()


@page("docs/wire-formats.md")
def _wire_formats(blocks: Page) -> None:
    blocks.run_in_step("gradients rest", gradients=params())


def pages_with_blocks() -> Iterator[str]:
    """Yields the path of every page with a Python block."""
    folders = ("*.md", "docs/**/*.md", "examples/**/*.md", "ffi/**/*.md")
    for found in sorted(path for folder in folders for path in ROOT.glob(folder)):
        if _BLOCK.search(found.read_text()):
            yield found.relative_to(ROOT).as_posix()


@page("docs/returning.md")
def _returning(blocks: Page) -> None:
    # No rank comes back in these steps.
    where, name = mesh("data"), "returning"
    everywhere, divided = NamedSharding(where, P()), NamedSharding(where, P("data"))

    def batch(step: int, rank: int) -> jax.Array:
        rows = np.full((jax.local_device_count(), 3), step + rank, np.float32)
        return jax.make_array_from_process_local_data(divided, rows)

    def update(state: jax.Array, x: jax.Array) -> Any:
        mean, stats = jax_optireduce.average_gradients(
            x[0], "data", name=name, return_stats=True
        )
        return state - mean, stats.skipped

    def apply(state: jax.Array) -> jax.Array:
        return state - jax_optireduce.drain(state, "data", name=name)

    mapped = functools.partial(jax.shard_map, mesh=where, check_vma=False)
    blocks.run(
        state=jax.make_array_from_process_local_data(everywhere, np.zeros(3)),
        batch=batch,
        rank=jax.process_index(),
        steps=3,
        step_fn=mapped(update, in_specs=(P(), P("data")), out_specs=P()),
        drain_fn=mapped(apply, in_specs=P(), out_specs=P()),
    )
    assert blocks.names["step"] == 3


def main() -> None:
    """Runs all pages, or those that the command line names."""
    jax_optireduce.init()
    own = Path(f"process {jax.process_index()}").absolute()
    own.mkdir()
    os.chdir(own)
    for path in sys.argv[1:] or PAGES:
        blocks = Page(path)
        number = len(blocks._left)
        PAGES[path](blocks)
        blocks.end()
        print(f"{path}: {number}", flush=True)
    multihost_utils.sync_global_devices("end")


if __name__ == "__main__":
    main()
