"""A rank of `chaos.py`: trains on digits, and writes a line of JSON for each step.

    python benchmarks/chaos_rank.py SCHEME STEPS STEP_S FOLDER

SCHEME is "bounded", whose killed ranks come back, "outer": replicas that train by
themselves, and average by an outer loop, or "gloo": `lax.pmean`. A job that starts
again begins from the checkpoint in FOLDER; the ranks save in turn.
"""

import json
import logging
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import jax_optireduce
from jax_optireduce.outer import Outer

AXIS = "ranks"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)

SCHEME, STEPS, STEP_S = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
FOLDER = Path(sys.argv[4])

# Images of a rank in a step, width of the network, and the rate of SGD with momentum.
# Chosen: by hand, a smooth loss.
BATCH, WIDTH, RATE, MOMENTUM = 16, 128, 0.05, 0.9

# Steps between two checkpoints. Chosen: ten seconds.
SAVE_EVERY = 50

# Images that are held out.
HELD_OUT = 360


def first_state() -> Any:
    """Returns parameters and momentum."""
    keys = jax.random.split(jax.random.key(0))
    params = {
        "hidden": np.asarray(jax.random.normal(keys[0], (64, WIDTH)) / 8),
        "out": np.asarray(jax.random.normal(keys[1], (WIDTH, 10)) / WIDTH**0.5),
    }
    return {"params": params, "momentum": jax.tree.map(np.zeros_like, params)}


def logits_of(params: Any, x: Any) -> Any:
    """Returns the logits of images."""
    return jax.nn.relu(x @ params["hidden"]) @ params["out"]


def update(state: Any, gradients: Any) -> Any:
    """Makes a step of SGD with momentum."""
    momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, state["momentum"], gradients)
    params = jax.tree.map(lambda p, m: p - RATE * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}


def loss_fn(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the mean loss of images."""
    logs = jax.nn.log_softmax(logits_of(params, x))
    return -jnp.mean(jnp.take_along_axis(logs, y[:, None], 1))


def step_fn(state: Any, x: jax.Array, y: jax.Array) -> Any:
    """Returns the state after a step, and a row of numbers of this rank.

    They are the loss, the live ranks, the missing share, and the skipped steps.
    """
    loss, gradients = jax.value_and_grad(loss_fn)(state["params"], x, y)
    if SCHEME == "gloo":
        mean = lax.pmean(gradients, AXIS)
        facts = jnp.array([lax.axis_size(AXIS), 0.0, 0.0])
    else:
        mean, stats = jax_optireduce.average_gradients(
            gradients, AXIS, name="gradients", return_stats=True
        )
        facts = jnp.stack(
            [stats.live_processes, stats.missing_contributions, stats.skipped]
        )
    report = jnp.concatenate([loss[None], facts.astype(jnp.float32)])
    return update(state, mean), report[None]


def drain_fn(state: Any) -> Any:
    """Returns the state with the late gradients applied."""
    rest = jax_optireduce.drain(state["params"], AXIS, name="gradients")
    return update(state, rest)


# Names of compilations of this process.
compilations: list[str] = []


def note(name: str, *_: Any, **__: Any) -> None:
    """Listens to JAX's events."""
    if "backend_compile" in name:
        compilations.append(name)


def facts() -> dict[str, int]:
    """Returns numbers of this process that must not grow."""
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": int(status.split("Threads:")[1].split()[0]),
        "memory_kb": int(status.split("VmRSS:")[1].split()[0]),
        "compilations": len(compilations),
    }


def compiled(function: Any, *operands: Any, specs: Any, result: Any) -> Any:
    """Returns the program of a function on the mesh of its first operand."""
    mesh = jax.tree.leaves(operands)[0].sharding.mesh
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=result, check_vma=False
    )
    return jax.jit(mapped).lower(*operands).compile()


def local(tree: Any) -> Any:
    """Returns replicated arrays on the host."""
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), tree)


def save(path: Path, step: int, state: Any) -> None:
    """Writes a checkpoint."""
    path.with_suffix(".new").write_bytes(pickle.dumps((step, local(state))))
    path.with_suffix(".new").rename(path)


class InStep:
    """Ranks that average the gradients of each step."""

    def __init__(self, batch: list[np.ndarray]) -> None:
        """Compiles."""
        self._mesh = jax.make_mesh((jax.process_count(),), (AXIS,))
        self.state = self._placed(first_state(), EVERYWHERE)
        specs, result = (EVERYWHERE, DIVIDED, DIVIDED), (EVERYWHERE, DIVIDED)
        rows = self._placed(batch, DIVIDED)
        self._train = compiled(step_fn, self.state, *rows, specs=specs, result=result)
        self.drain = None
        if SCHEME != "gloo":
            self.drain = compiled(
                drain_fn, self.state, specs=(EVERYWHERE,), result=EVERYWHERE
            )

    def _placed(self, tree: Any, spec: PartitionSpec) -> Any:
        make, place = jax.make_array_from_process_local_data, self._mesh
        return jax.tree.map(lambda x: make(NamedSharding(place, spec), x), tree)

    def restore(self, values: Any) -> None:
        """Begins with the values of a checkpoint."""
        self.state = self._placed(values, EVERYWHERE)

    def step(self, state: Any, batch: list[np.ndarray], step: int) -> Any:
        """Returns the state and the step after a step, and its numbers."""
        state, report = self._train(state, *self._placed(batch, DIVIDED))
        loss, live, missing, skipped = map(float, local(report)[0])
        return state, step + 1 + int(skipped), (loss, live, missing)

    def end(self, state: Any) -> Any:
        """Returns the final parameters."""
        return local(state if self.drain is None else self.drain(state))["params"]


class Outwards:
    """Replicas that average by an outer loop."""

    def __init__(self, session: Any, batch: list[np.ndarray]) -> None:
        """Compiles."""

        def inner(state: Any, x: jax.Array, y: jax.Array) -> Any:
            loss, gradients = jax.value_and_grad(loss_fn)(state["params"], x, y)
            return update(state, gradients), loss

        # Chosen: the call has the time of three steps.
        self._outer = Outer(every=10, parts=2, delay=3)
        self._session = session
        values = jax.device_put(first_state())
        self.state = values, self._outer.init(values["params"])
        self._inner = jax.jit(inner).lower(values, *batch).compile()

    def step(self, state: Any, batch: list[np.ndarray], step: int) -> Any:
        """Returns the state and the step after a step, and its numbers."""
        values, loss = self._inner(state[0], *batch)
        new = values, state[1]
        try:
            params, own = self._outer.step(values["params"], state[1], step + 1)
            new, step = ({**values, "params": params}, own), step + 1
        except jax_optireduce.CollectiveError:
            self._outer.abandon()
            new, step = jax_optireduce.join(state, step)
        return new, step, (float(loss), self._session.world_size, 0.0)

    def drain(self, state: Any) -> Any:
        """Ends the calls under way."""
        params, own = self._outer.settle(state[0]["params"], state[1])
        return {**state[0], "params": params}, own

    def end(self, state: Any) -> Any:
        """Returns the final parameters."""
        self._outer.settle(state[0]["params"], state[1])
        return jax.tree.map(np.asarray, state[1].anchors)


def main() -> None:
    """Trains, and writes the accuracy."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    jax.monitoring.register_event_duration_secs_listener(note)
    backend = "xla" if SCHEME == "gloo" else "optireduce"
    session = jax_optireduce.init(backend=backend)
    rank, ranks = int(os.environ["CHAOS_RANK"]), int(os.environ["CHAOS_RANKS"])
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)

    def batch(step: int) -> list[np.ndarray]:
        random = np.random.default_rng((step, rank))
        chosen = random.integers(HELD_OUT, len(images), BATCH)
        return [images[chosen], labels[chosen]]

    saved, step = FOLDER / "checkpoint", 0
    loop: Any = Outwards(session, batch(0)) if SCHEME == "outer" else InStep(batch(0))
    if saved.exists():
        step, values = pickle.loads(saved.read_bytes())  # noqa: S301 (its own file)
        loop.restore(values)
    state, step = jax_optireduce.join(loop.state, step)
    first, began = None, step
    with (FOLDER / f"rank{rank}.jsonl").open("a", buffering=1) as file:
        while step < STEPS:
            time.sleep(STEP_S)
            state, step, (loss, live, missing) = loop.step(state, batch(step), step)
            row = {"step": step, "s": time.time(), "loss": loss}
            file.write(json.dumps(row | {"live": live, "missing": missing}) + "\n")
            state = jax_optireduce.admit(state, step, loop.drain)
            # The first steps of a process may compile small programs.
            if first is None and step >= began + 20:
                first = facts()
            own = step // SAVE_EVERY % ranks == rank
            if SCHEME != "outer" and step % SAVE_EVERY == 0 and own:
                save(saved, step, state)
    last = facts()
    params = loop.end(state)
    found = np.argmax(logits_of(params, images[:HELD_OUT]), 1)
    accuracy = float(np.mean(found == labels[:HELD_OUT]))
    end = {"accuracy": accuracy, "began": began, "first": first, "last": last}
    (FOLDER / f"end{rank}").write_text(json.dumps(end))
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
