"""The outer loop of DiLoCo: many inner steps, then one average, for slow links.

Each replica trains by itself. Every `every` steps the *outer gradient* of its
parameters, their value at the last outer step less their present one, is averaged over
the replicas, and an outer optimizer takes a step with the mean. The parameters are
divided into parts, whose calls are spread over these steps. A call runs on the host
beside the inner steps, on CPU, GPU and TPU.

Sources: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of
Language Models", arXiv:2311.08105; "Streaming DiLoCo with overlapping communication",
arXiv:2501.18512 (parts, the delay, the mixing).
"""

import dataclasses
import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_optireduce import _native, _stats
from jax_optireduce._argument_types import Mode, WireFormat
from jax_optireduce._errors import CollectiveError, UsageError
from jax_optireduce._program import checks, identity
from jax_optireduce._program.call import Drain
from jax_optireduce._session import communicator, host_calls

__all__ = ["Outer", "OuterState"]

# Source: DiLoCo, section 3: the tuned outer optimizer.
_RATE, _MOMENTUM = 0.7, 0.9

# Share of a replica's own parameters in the mixture after a delayed outer step.
# Source: Streaming DiLoCo, section 3.2.
_MIXING = 0.5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OuterState:
    """The state of the outer loop: a pytree, for checkpoints and `join`.

    Attributes:
      anchors: the parameters after the last outer step of each part.
      optimizers: the state of the outer optimizer of each part.
    """

    anchors: Any
    optimizers: tuple[Any, ...]


class Outer:
    """The outer loop of one replica.

    Every replica makes the same calls, with the same numbers of steps. Example::

        outer = jax_optireduce.outer.Outer(every=25, parts=4, delay=5)
        state = outer.init(params)
        while step < steps:
            params, optimizer = inner_step(params, optimizer, batch(step))
            step += 1
            params, state = outer.step(params, state, step)
        params, state = outer.settle(params, state)
    """

    def __init__(
        self,
        optimizer: optax.GradientTransformation | None = None,
        *,
        every: int,
        parts: int = 1,
        delay: int = 0,
        mixing: float | None = None,
        mode: Mode = "bounded",
        wire_format: WireFormat = "float32",
        name: str = "outer gradient",
    ) -> None:
        """States the outer loop.

        Args:
          optimizer: the outer one; None: SGD of rate 0.7 with Nesterov momentum 0.9.
          every: inner steps between two outer steps of a part, H.
          parts: number of parts of the parameters, of about equal size.
          delay: inner steps for which a call may take without a wait; less than
            `every`. A result is used so many steps after the call, on all replicas.
          mixing: share of a replica's own parameters in the result of an outer step,
            from 0 to 1; None: 0 without a delay, else 0.5.
          mode: of the calls, see `CallArguments`. In "bounded" the gradient of a late
            replica is in the next outer step. Calls longer than `deadline_max_s` are
            late.
          wire_format: of the calls, see `CallArguments`.
          name: of the calls.

        Raises:
          UsageError: an argument does not fit.
        """
        if every < 1 or not 1 <= parts <= every or not 0 <= delay < every:
            raise UsageError(
                "Outer needs every >= 1, parts from 1 to every, and delay from 0 "
                f"to every - 1, got every={every}, parts={parts}, "
                f"delay={delay}."
            )
        if mixing is None:
            mixing = _MIXING if delay else 0.0
        if not 0 <= mixing <= 1:
            raise UsageError(f"mixing must be from 0 to 1, got {mixing}.")
        checks.check_choice("mode", mode, ("exact", "agreed", "bounded"))
        checks.check_wire_format(wire_format)
        if optimizer is None:
            optimizer = optax.sgd(_RATE, _MOMENTUM, nesterov=True)
        self.every = every
        self.parts = parts
        self.delay = delay
        self._mixing = mixing
        self._optimizer = optimizer
        self._mode = mode
        self._wire_format = wire_format
        self._name = checks.checked_key(name, "Outer")
        # The calls under way, by part.
        self._sent: dict[int, Future[Any]] = {}

    def init(self, params: Any) -> OuterState:
        """Returns the state at the start.

        Args:
          params: floating arrays, the same ones on all replicas.

        Raises:
          UsageError: a leaf is not floating, or there are more parts than leaves.
        """
        leaves = jax.tree.leaves(params)
        for leaf in leaves:
            if not jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.floating):
                raise UsageError(
                    "Outer averages floating parameters, got a leaf of dtype "
                    f"{jax.dtypes.result_type(leaf)}. Keep it apart from them."
                )
        # Copies: the program may donate its parameters.
        anchors = jax.tree.map(jnp.copy, params)
        kept = jax.tree.leaves(anchors)
        optimizers = tuple(
            self._optimizer.init([kept[i] for i in positions])
            for positions in self._divide(kept)
        )
        return OuterState(anchors, optimizers)

    def step(
        self, params: Any, state: OuterState, step: int, weight: float = 1.0
    ) -> tuple[Any, OuterState]:
        """Makes the outer steps that are due; to be called after each inner step.

        It takes microseconds where none is due.

        Args:
          params: after the inner step; the tree of `init`.
          state: of the outer loop.
          step: number of inner steps made, equal on all replicas.
          weight: of the outer gradients of this replica in the mean. The mean of all
            weights must be 1: for a mean over tokens it is the number of tokens of this
            replica / the mean number of a replica.

        Returns:
          The parameters and the state.

        Raises:
          CollectiveError: a call failed, such as by the death of one of two replicas.
          NotInitializedError: `init` was not called.
        """
        for part in range(self.parts):
            since = (step - part * self.every // self.parts) % self.every
            if self.delay and since == self.delay and part in self._sent:
                params, state = self._receive(params, state, part)
            if since == 0 and step:
                self._send(params, state, part, weight)
                if not self.delay:
                    params, state = self._receive(params, state, part)
        return params, state

    def settle(self, params: Any, state: OuterState) -> tuple[Any, OuterState]:
        """Ends the calls under way, and fetches late gradients; on all replicas.

        Call it before a checkpoint and at the end, and as the `drain` of `admit`. Late
        gradients join the next outer step.

        Returns:
          The parameters and the state; no data is in flight.

        Raises:
          CollectiveError: see `step`.
        """
        given = jax.tree.leaves(params)
        divided = self._divide(given)

        def drain(part: int, sent: Future[Any] | None) -> list[np.ndarray]:
            if sent is not None:
                wait([sent])
            zeros = [np.zeros(given[i].shape) for i in divided[part]]
            return self._call(part, zeros, Drain.OF_CALLS_IF_ANY)

        # All parts at once: a replica that has skipped calls waits in a call of a part
        # until all others drain that part, and they wait for it in another one.
        with ThreadPoolExecutor(self.parts) as threads:
            drains = [
                threads.submit(drain, part, self._sent.get(part))
                for part in range(self.parts)
                if self._mode != "exact"
            ]
            for part in sorted(self._sent):
                params, state = self._receive(params, state, part)
        leaves, treedef = jax.tree.flatten(params)
        for positions, late in zip(divided, drains, strict=False):
            # The next outer gradient, of every replica, has them.
            own = _differences([leaves[i] for i in positions], late.result())
            for i, leaf in zip(positions, own, strict=True):
                leaves[i] = leaf.astype(leaves[i].dtype)
        return jax.tree.unflatten(treedef, leaves), state

    def abandon(self) -> None:
        """Forgets the calls under way, before a program joins again after an error."""
        self._sent.clear()

    # ---- One outer step.

    def _divide(self, leaves: Sequence[Any]) -> list[list[int]]:
        """Returns the positions of the leaves of each part, the same ones always.

        Raises:
          UsageError: there are fewer leaves than parts.
        """
        sizes = tuple(int(np.size(leaf)) for leaf in leaves)
        return _divided(sizes, self.parts)

    def _send(self, params: Any, state: OuterState, part: int, weight: float) -> None:
        communicator.current("Outer.step")
        anchors, own = jax.tree.leaves(state.anchors), jax.tree.leaves(params)
        positions = self._divide(anchors)[part]
        gradient = _differences(
            [anchors[i] for i in positions], [own[i] for i in positions], weight
        )
        sent: Future[Any] = Future()

        def run() -> None:
            try:
                sent.set_result(self._call(part, gradient, Drain.NONE))
            except Exception as error:  # noqa: BLE001 (the program raises it)
                sent.set_exception(error)

        self._sent[part] = sent
        threading.Thread(target=run, name="jax_optireduce outer", daemon=True).start()

    def _receive(
        self, params: Any, state: OuterState, part: int
    ) -> tuple[Any, OuterState]:
        mean = self._sent.pop(part).result()
        anchors, treedef = jax.tree.flatten(state.anchors)
        own, _ = jax.tree.flatten(params)
        positions = self._divide(anchors)[part]
        moved, mixed, optimizer = _outer_step(
            self._optimizer,
            [anchors[i] for i in positions],
            [own[i] for i in positions],
            state.optimizers[part],
            mean,
            self._mixing,
        )
        for i, anchor, leaf in zip(positions, moved, mixed, strict=True):
            anchors[i], own[i] = anchor, leaf
        optimizers = list(state.optimizers)
        optimizers[part] = optimizer
        return jax.tree.unflatten(treedef, own), OuterState(
            jax.tree.unflatten(treedef, anchors), tuple(optimizers)
        )

    def _call(self, part: int, arrays: Sequence[Any], drain: Drain) -> list[np.ndarray]:
        """Averages arrays over the live replicas, on the host.

        Raises:
          CollectiveError: the call failed.
        """
        bucket = np.concatenate([np.asarray(x, np.float32).ravel() for x in arrays])
        own = communicator.current("Outer")
        replica = bool(own.options.replica)
        how = (self._mode, self._wire_format, self.every, self.parts)
        try:
            stats = host_calls.allreduce(
                bucket,
                communicator=communicator.NAME,
                name=identity.numbered(self._name, part),
                mode=self._mode,
                processes=[_native.EACH_PROCESS] if replica else range(own.world_size),
                rank=0 if replica else own.rank,
                wire_format=self._wire_format,
                drain=drain,
                fingerprint=identity.hash64(repr(how)),
            )
        except RuntimeError as error:
            raise CollectiveError(str(error)) from error
        bucket /= _stats.live_processes(stats)
        ends = np.cumsum([np.size(x) for x in arrays])[:-1]
        means = np.split(bucket, ends)
        return [
            mean.reshape(np.shape(x)) for mean, x in zip(means, arrays, strict=True)
        ]


@functools.cache
def _divided(sizes: tuple[int, ...], parts: int) -> list[list[int]]:
    """Divides leaves into parts of about equal size: the largest leaves first."""
    if len(sizes) < parts:
        raise UsageError(
            f"{parts} parts need as many parameters, got {len(sizes)} arrays."
        )
    divided: list[list[int]] = [[] for _ in range(parts)]
    totals = [0] * parts
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        smallest = min(range(parts), key=lambda f: (totals[f], len(divided[f])))
        divided[smallest].append(i)
        totals[smallest] += sizes[i]
    return [sorted(positions) for positions in divided]


@jax.jit
def _differences(
    anchors: Sequence[Any], own: Sequence[Any], weight: float = 1.0
) -> list[jax.Array]:
    """Returns outer gradients times their weight, float32."""
    return [
        weight * (anchor.astype(jnp.float32) - leaf.astype(jnp.float32))
        for anchor, leaf in zip(anchors, own, strict=True)
    ]


@functools.partial(jax.jit, static_argnums=0)
def _outer_step(
    optimizer: optax.GradientTransformation,
    anchors: list[Any],
    own: list[Any],
    state: Any,
    mean: list[Any],
    mixing: float,
) -> tuple[list[Any], list[Any], Any]:
    """Returns anchors and parameters after an outer step, and the optimizer's state."""
    gradients = [g.astype(x.dtype) for g, x in zip(mean, anchors, strict=True)]
    updates, state = optimizer.update(gradients, state, anchors)
    moved: Any = optax.apply_updates(anchors, updates)
    mixed = [
        (mixing * x + (1 - mixing) * anchor).astype(x.dtype)
        for x, anchor in zip(own, moved, strict=True)
    ]
    return moved, mixed, state
