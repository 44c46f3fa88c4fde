"""A rank of `chaos.py`: trains on digits, and writes a line of JSON for each step.

    python benchmarks/chaos_rank.py SCHEME STEPS STEP_S FOLDER

SCHEME is "bounded", whose killed ranks come back, or "gloo": `lax.pmean`. A job that
starts again begins from the checkpoint in FOLDER; the ranks save in turn.
"""

import json
import logging
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


def step_fn(state: Any, x: jax.Array, y: jax.Array) -> Any:
    """Returns the state after a step, and a row of numbers of this rank.

    They are the loss, the live ranks, the missing share, and the skipped steps.
    """

    def loss_fn(params: Any) -> jax.Array:
        logs = jax.nn.log_softmax(logits_of(params, x))
        return -jnp.mean(jnp.take_along_axis(logs, y[:, None], 1))

    loss, gradients = jax.value_and_grad(loss_fn)(state["params"])
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


def main() -> None:
    """Trains, and writes the accuracy."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    jax.monitoring.register_event_duration_secs_listener(note)
    jax_optireduce.init(backend="xla" if SCHEME == "gloo" else "optireduce")
    rank, ranks = jax.process_index(), jax.process_count()
    mesh = jax.make_mesh((ranks,), (AXIS,))
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)

    def batch(step: int) -> list[jax.Array]:
        random = np.random.default_rng((step, rank))
        chosen = random.integers(HELD_OUT, len(images), BATCH)
        sharding = NamedSharding(mesh, DIVIDED)
        return [
            jax.make_array_from_process_local_data(sharding, rows[chosen])
            for rows in (images, labels)
        ]

    saved = FOLDER / "checkpoint"
    step, values = 0, first_state()
    if saved.exists():
        step, values = pickle.loads(saved.read_bytes())  # noqa: S301 (its own file)
    everywhere = NamedSharding(mesh, EVERYWHERE)
    state = jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(everywhere, x), values
    )
    specs, result = (EVERYWHERE, DIVIDED, DIVIDED), (EVERYWHERE, DIVIDED)
    train = compiled(step_fn, state, *batch(0), specs=specs, result=result)
    drain = None
    if SCHEME != "gloo":
        drain = compiled(drain_fn, state, specs=(EVERYWHERE,), result=EVERYWHERE)
    state, step = jax_optireduce.join(state, step)
    first, began = None, step
    with (FOLDER / f"rank{rank}.jsonl").open("a", buffering=1) as file:
        while step < STEPS:
            time.sleep(STEP_S)
            state, report = train(state, *batch(step))
            loss, live, missing, skipped = map(float, local(report)[0])
            step += 1 + int(skipped)
            row = {"step": step, "s": time.time(), "loss": loss}
            file.write(json.dumps(row | {"live": live, "missing": missing}) + "\n")
            state = jax_optireduce.admit(state, step, drain)
            # The first steps of a process may compile small programs.
            if first is None and step >= began + 20:
                first = facts()
            if step % SAVE_EVERY == 0 and step // SAVE_EVERY % ranks == rank:
                save(saved, step, state)
    last = facts()
    params = local(state if drain is None else drain(state))["params"]
    found = np.argmax(logits_of(params, images[:HELD_OUT]), 1)
    accuracy = float(np.mean(found == labels[:HELD_OUT]))
    end = {"accuracy": accuracy, "began": began, "first": first, "last": last}
    (FOLDER / f"end{rank}").write_text(json.dumps(end))
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
