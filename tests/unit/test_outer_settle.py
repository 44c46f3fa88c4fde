"""The end of an outer loop."""

import threading

import jax.numpy as jnp

from jax_optireduce.outer import Outer


def test_the_drains_of_all_parts_are_under_way_at_once(monkeypatch):
    # A replica that has skipped a call waits in one of a part until all others drain
    # that part; they would wait for it in the drain of another part.
    outer = Outer(every=4, parts=3)
    params = {name: jnp.ones(5) for name in "abc"}
    under_way = threading.Barrier(3)

    def call(_, arrays, __):
        under_way.wait(timeout=20)
        return arrays

    monkeypatch.setattr(outer, "_call", call)
    settled, _ = outer.settle(params, outer.init(params))
    assert all((leaf == 1).all() for leaf in settled.values())
