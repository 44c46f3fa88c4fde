"""The outer loop of replicas.

Argument: the case. Each replica knows the gradients of all, and computes alone all that
they do together. Prints "done" if all is right, and "alone <step>" where it goes on
without the other after the error of a call.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jax_optireduce as jo
from jax_optireduce import REPLICAS
from jax_optireduce.outer import Outer

CASE = sys.argv[1]
RATE = 0.1

session = jo.init()
START = {
    "a": jnp.linspace(-1, 1, 300, dtype=jnp.float32),
    "b": jnp.ones((7, 3), jnp.float32),
    "c": jnp.zeros(50, jnp.float32),
}


def gradient(step, place):
    rng = np.random.default_rng((step, place))
    draw = lambda x: rng.standard_normal(x.shape, np.float32)  # noqa: E731
    return jax.tree.map(draw, START)


@jax.jit
def inner(params, gradient):
    return jax.tree.map(lambda p, g: p - RATE * (0.1 * p + g), params, gradient)


def close(found, wanted, **tolerance):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, **tolerance), found, wanted
    )


def trained(outer, params, state, steps):
    for step in range(1, steps + 1):
        params = inner(params, gradient(step, session.place))
        params, state = outer.step(params, state, step)
    return outer.settle(params, state)


def each_step():
    """One inner step for each outer one is data-parallel SGD."""
    outer = Outer(optax.sgd(1.0), every=1, mode="exact")
    params, _ = trained(outer, START, outer.init(START), 20)
    expected = START
    for step in range(1, 21):
        rows = [inner(expected, gradient(step, place)) for place in range(2)]
        expected = jax.tree.map(lambda *x: sum(x) / 2, *rows)
    close(params, expected, rtol=2e-5, atol=1e-6)


def parts():
    """Parts, a delay and a mixture, with the default optimizer."""
    outer = Outer(every=6, parts=3, delay=2, mode="exact")
    params, state = trained(outer, START, outer.init(START), 40)
    jo.assert_replicas_equal(state.anchors)
    optimizer = optax.sgd(0.7, 0.9, nesterov=True)
    names = list(START)
    own = [dict(START), dict(START)]
    anchors, states = dict(START), {n: optimizer.init(START[n]) for n in names}
    sent = {}
    # Each of three parts is one leaf: the largest is the first.
    order = sorted(names, key=lambda n: -START[n].size)
    for step in range(1, 41):
        own = [inner(own[place], gradient(step, place)) for place in range(2)]
        for part, name in enumerate(order):
            since = (step - 2 * part) % 6
            if since == 2 and name in sent:
                updates, states[name] = optimizer.update(sent.pop(name), states[name])
                anchors[name] = anchors[name] + updates
                for of in own:
                    of[name] = (of[name] + anchors[name]) / 2
            if since == 0:
                sent[name] = sum(anchors[name] - of[name] for of in own) / 2
    for name in list(sent):
        updates, states[name] = optimizer.update(sent.pop(name), states[name])
        anchors[name] = anchors[name] + updates
        for of in own:
            of[name] = (of[name] + anchors[name]) / 2
    close(state.anchors, anchors, rtol=1e-4, atol=1e-5)
    close(params, own[session.place], rtol=1e-4, atol=1e-5)


def weighted():
    """A replica with three times the tokens has three times the weight."""
    outer = Outer(optax.sgd(1.0), every=2, mode="exact")
    params = {"a": jnp.zeros(1000)}
    state = outer.init(params)
    tokens = (100, 300)[session.place]
    mean_tokens = float(jax.jit(lambda n: jo.pmean(n, REPLICAS))(jnp.float32(tokens)))
    for step in range(1, 21):
        params = {"a": params["a"] + (1.0, 5.0)[session.place]}
        params, state = outer.step(params, state, step, weight=tokens / mean_tokens)
    # Two steps of 1 with 100 tokens, and of 5 with 300.
    np.testing.assert_allclose(params["a"], 10 * (2 * 100 + 10 * 300) / 400, rtol=1e-6)


def late():
    """A replica that is late loses nothing, and no replica waits for it."""
    outer = Outer(optax.sgd(1.0), every=2)
    params = {"a": jnp.zeros(1000)}
    state = outer.init(params)
    share = jnp.float32(1 + session.place)
    for step in range(1, 81):
        if session.place == 1 and step % 16 == 3:
            time.sleep(0.3)
        params = {"a": params["a"] + share}
        params, state = outer.step(params, state, step)
        time.sleep(0.01)
    params, state = outer.settle(params, state)
    # In each of 40 rounds the replicas move by 2, 4 and 6.
    np.testing.assert_allclose(params["a"], 40 * 4, rtol=1e-5)
    assert jo.stats()["calls_completed"] >= 40


def dead():
    """After the death of the other of two replicas one goes on."""
    outer = Outer(every=2, delay=1)
    params, step = START, 0
    state = outer.init(params)
    (params, state), step = jo.join((params, state), step)
    while session.world_size > 1 or step < 20:
        params = inner(params, gradient(step, session.place))
        step += 1
        try:
            params, state = outer.step(params, state, step)
        except jo.CollectiveError:
            outer.abandon()
            (params, state), step = jo.join((params, state), step)
            print("alone", step, flush=True)
        print("step", step, session.world_size, flush=True)
        (params, state) = jo.admit(
            (params, state), step, lambda both: outer.settle(*both)
        )
        time.sleep(0.05)


if CASE != "dead":
    jo.join({})
globals()[CASE]()
print("done", flush=True)
