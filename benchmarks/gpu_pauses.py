"""Training on GPUs whose hosts pause: this package beside gradients staged over Gloo.

    JAX_PLATFORMS=cuda,cpu python -m jax_optireduce launch -n 4 benchmarks/gpu_pauses.py

The ranks may share a GPU. They train a GPT-2 of bytes on the text of Python's help,
with AdamW. Before a step each rank pauses with a given probability. The schemes have
the same pauses, and each begins with the same parameters:

* `exact`, `bounded`: one jitted step with `average_gradients`; `bounded` ends with an
  update by the late data, so it makes one more;
* `gloo`: the gradient as one array is copied to the host, averaged by `lax.pmean` over
  CPU devices, and copied back: the way that is left without NCCL.

Rank 0 prints for each scheme the time of a step, that of a step without a pause, and
the loss on text that no rank trains on. The names of schemes select some of them.
"""

import argparse
import functools
import json
import pydoc_data.topics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import gpt2_model

# Chosen: 25 million parameters, so 100 MB of gradients.
SIZES = {"embd": 512, "layers": 8, "heads": 8, "length": 256}
SMALL = {"embd": 32, "layers": 1, "heads": 2, "length": 32}

# Share of the text that no rank trains on.
HELD_OUT = 0.05

State = tuple[Any, Any]
Step = Callable[[State, jax.Array], State]


class Task:
    """The model and the text, equal on all ranks.

    Attributes:
      params: at the start, on all devices.
      optimizer: AdamW.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        sizes = SMALL if args.small else SIZES
        config = gpt2_model.Config(
            vocab_size=256,
            n_positions=sizes["length"],
            n_embd=sizes["embd"],
            n_layer=sizes["layers"],
            n_head=sizes["heads"],
        )
        self._graph, params = nnx.split(gpt2_model.Gpt2(config, nnx.Rngs(0)))
        self.mesh = jax.make_mesh(
            (jax.device_count(),), ("data",), axis_types=(AxisType.Auto,)
        )
        everywhere = NamedSharding(self.mesh, P())
        self.params = jax.tree.map(
            lambda x: jax.make_array_from_callback(
                x.shape, everywhere, np.asarray(x).__getitem__
            ),
            params,
        )
        self.optimizer = optax.adamw(args.rate)
        topics = sorted(pydoc_data.topics.topics.items())
        text = "\n".join(body for _, body in topics).encode()
        tokens = np.frombuffer(text, np.uint8).astype(np.int32)
        blocks = tokens[: len(tokens) // sizes["length"] * sizes["length"]]
        self._blocks = blocks.reshape(-1, sizes["length"])
        self._held = int(len(self._blocks) * HELD_OUT)
        self._batch = args.batch

    def batch(self, step: int) -> jax.Array:
        """Returns the blocks of all ranks, [ranks * batch, length], divided."""
        ranks = jax.device_count()
        random = np.random.default_rng(step)
        chosen = random.integers(self._held, len(self._blocks), ranks * self._batch)
        return self._placed(self._blocks[chosen])

    def held_out(self) -> jax.Array:
        """Returns blocks for the evaluation, as many on each rank."""
        ranks = jax.device_count()
        return self._placed(self._blocks[: self._held // ranks * ranks])

    def _placed(self, blocks: np.ndarray) -> jax.Array:
        at = NamedSharding(self.mesh, P("data"))
        return jax.make_array_from_callback(blocks.shape, at, blocks.__getitem__)

    def loss(self, params: Any, tokens: jax.Array) -> jax.Array:
        """Returns the mean loss of the next byte, float32 []."""
        return gpt2_model.next_token_loss(nnx.merge(self._graph, params), tokens)

    def update(self, state: State, gradients: Any) -> State:
        """Returns the state after an update."""
        params, moments = state
        updates, moments = self.optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments

    def program(self, function: Callable[..., Any], specs: Any, result: Any) -> Any:
        """Returns a jitted function of state and batch, or of parts of them."""
        return jax.jit(
            jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=specs,
                out_specs=result,
                check_vma=False,
            )
        )


def ours(task: Task, mode: Any) -> tuple[Step, Callable[[State], State]]:
    """Returns the step of this package, and the function after the last one."""

    def step(state: State, tokens: jax.Array) -> State:
        gradients = jax.grad(task.loss)(state[0], tokens)
        gradients = jo.average_gradients(gradients, "data", mode=mode, name=mode)
        return task.update(state, gradients)

    def rest(state: State) -> State:
        late = jo.drain(jax.tree.map(jnp.zeros_like, state[0]), "data", name=mode)
        return jo.resync(task.update(state, late), "data")

    drain = task.program(rest, (P(),), P())
    program = task.program(step, (P(), P("data")), P())
    return program, drain if mode == "bounded" else lambda state: state


def staged(task: Task) -> tuple[Step, Callable[[State], State]]:
    """Returns a step whose gradients cross the network between CPU devices."""
    devices: dict[int, Any] = {}
    for device in jax.devices("cpu"):
        devices.setdefault(device.process_index, device)
    hosts = Mesh(np.array([devices[i] for i in sorted(devices)]), ("data",))
    pmean = jax.shard_map(
        functools.partial(lax.pmean, axis_name="data"),
        mesh=hosts,
        in_specs=P("data"),
        out_specs=P(),
    )
    average = jax.jit(pmean)
    _, unravel = ravel_pytree(
        jax.tree.map(lambda x: x.addressable_data(0), task.params)
    )

    def gradient(params: Any, tokens: jax.Array) -> jax.Array:
        return ravel_pytree(jax.grad(task.loss)(params, tokens))[0][None]

    def apply(state: State, gradients: jax.Array) -> State:
        return task.update(state, unravel(gradients))

    compute = task.program(gradient, (P(), P("data")), P("data"))
    update = task.program(apply, (P(), P()), P())

    def step(state: State, tokens: jax.Array) -> State:
        own = np.asarray(compute(state[0], tokens).addressable_data(0))
        row = jax.device_put(own, devices[jax.process_index()])
        shape, at = (len(devices), own.shape[1]), NamedSharding(hosts, P("data"))
        rows = jax.make_array_from_single_device_arrays(shape, at, [row])
        mean = np.asarray(average(rows).addressable_data(0))[0]
        everywhere = NamedSharding(task.mesh, P())
        placed = jax.make_array_from_callback(mean.shape, everywhere, mean.__getitem__)
        return update(state, placed)

    return step, lambda state: state


def measure(task: Task, scheme: str, args: argparse.Namespace) -> dict[str, Any]:
    """Trains by a scheme; returns its figures on this rank."""
    step, end = staged(task) if scheme == "gloo" else ours(task, scheme)
    start = task.params, jax.jit(task.optimizer.init)(task.params)
    # Compiles, with a batch of no step: for arrays of other programs, and for its own.
    jax.block_until_ready(end(step(step(start, task.batch(0)), task.batch(0))))
    state, times, quiet = start, [], []
    for number in range(1, args.steps + 1):
        tokens = task.batch(number)
        draws = np.random.default_rng((7, number)).random(jax.device_count())
        begin = time.perf_counter()
        if draws[jax.process_index()] < args.probability:
            time.sleep(args.pause_s)
        state = jax.block_until_ready(step(state, tokens))
        times.append(time.perf_counter() - begin)
        if (draws >= args.probability).all():
            quiet.append(times[-1])
    state = end(state)
    mean = task.program(
        lambda p, x: jo.pmean(task.loss(p, x), "data", mode="exact", name="held out"),
        (P(), P("data")),
        P(),
    )
    loss = np.asarray(mean(state[0], task.held_out()).addressable_data(0))
    return {
        "scheme": scheme,
        "s_per_step": round(float(np.mean(times)), 4),
        "quiet_p50_s": round(float(np.median(quiet)), 4),
        "loss": round(float(loss), 4),
    }


def main() -> None:
    """Measures the schemes, one after another, several times."""
    schemes = ["exact", "bounded", "gloo"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("schemes", nargs="*", help=f"of {', '.join(schemes)} (default: all)")
    add("--steps", type=int, default=120, help="of each scheme (default 120)")
    add("--batch", type=int, default=16, help="blocks of a rank (default 16)")
    add("--rate", type=float, default=3e-4, help="of AdamW (default 0.0003)")
    add("--probability", type=float, default=0.05, help="of a pause (default 0.05)")
    add("--pause-s", type=float, default=0.5, help="its length (default 0.5)")
    add("--small", action="store_true", help="a tiny model, for a rehearsal")
    args = parser.parse_args()
    with jo.init():
        task = Task(args)
        for scheme in args.schemes or schemes:
            found = measure(task, scheme, args)
            if jax.process_index() == 0:
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
