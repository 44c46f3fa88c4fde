"""`begin` and `end`: the results of `jax.lax`, a step later."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce
from jax_optireduce._session import communicator

_P = PartitionSpec
_STEPS = 50
_RATE = 0.05
_MODES = ("exact", "agreed", "bounded", "lossy")


def _mapped(
    function: Callable[..., Any],
    in_specs: Any,
    out_specs: Any,
    *,
    vma: bool,
    **how: Any,
) -> Callable[..., Any]:
    mesh = how.pop("mesh", None) or mesh_of((4,), ("dp",))
    return jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=vma
        ),
        **how,
    )


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    jax_optireduce.init()
    yield
    jax_optireduce.shutdown()


@contextlib.contextmanager
def _other_session(**options: Any) -> Iterator[None]:
    jax_optireduce.shutdown()
    jax_optireduce.init(**options)
    yield
    jax_optireduce.shutdown()
    jax_optireduce.init()


# --- Training ------------------------------------------------------------------------


def _parameters() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "hidden": jax.random.normal(keys[0], (6, 8)) / 3,
        "out": jax.random.normal(keys[1], (8, 1)) / 3,
        "bias": jnp.zeros(()),
    }


def _loss(params: Any, x: Any, y: Any) -> Any:
    predicted = jnp.tanh(x @ params["hidden"]) @ params["out"] + params["bias"]
    return ((predicted[:, 0] - y) ** 2).mean()


def _gradients(params: Any, x: Any, y: Any) -> Any:
    """Returns the gradients of this rank, in both values of check_vma."""
    if jax.typeof(lax.axis_index("dp")).mat.varying:
        params = jax.tree.map(lambda p: lax.pcast(p, "dp", to="varying"), params)
    return jax.grad(_loss)(params, x, y)


def _updated(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - _RATE * g, params, gradients)


def _batches() -> list[tuple[jax.Array, jax.Array]]:
    random = np.random.default_rng(1)
    rows = [
        jnp.asarray(random.normal(size=(32, 6)), jnp.float32) for _ in range(_STEPS)
    ]
    return [(x, jnp.sin(x.sum(1))) for x in rows]


def _train(step: Callable[..., Any], state: Any, *, vma: bool) -> Any:
    """Returns the state after 50 steps on 4 ranks, each with its own batch."""
    in_specs = (_P(), _P("dp"), _P("dp"))
    mapped = _mapped(step, in_specs, _P(), vma=vma, donate_argnums=0)
    for x, y in _batches():
        # XLA aborts the process if too many programs with `lax.pmean` are under way.
        state = jax.block_until_ready(mapped(state, x, y))
    return state


@functools.cache
def _expected(delay: int) -> Any:
    """Returns the parameters of `lax.pmean`, `delay` steps late."""

    def step(state: Any, x: Any, y: Any) -> Any:
        params, late = state
        means = lax.pmean(jax.grad(_loss)(params, x, y), "dp")
        now, *late = [*late, means]
        return _updated(params, now), tuple(late)

    params = _parameters()
    late = tuple(jax.tree.map(jnp.zeros_like, params) for _ in range(delay))
    return _train(step, (params, late), vma=False)[0]


def _check_equal(params: Any, expected: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        wanted = dict(jax.tree_util.tree_leaves_with_path(expected))[path]
        np.testing.assert_allclose(leaf, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("vma", [False, True])
@pytest.mark.parametrize("mode", _MODES)
def test_sgd_equals_pmean_of_the_step_before(mode: str, *, vma: bool) -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        params, handle = state
        gradients = _gradients(params, x, y)
        following = jax_optireduce.begin(gradients, "dp", mode=mode)
        means = jax_optireduce.end(handle, after=following)
        return _updated(params, means), following

    params = _parameters()
    handle = jax_optireduce.empty_handle(params, "dp", mode=mode)
    _check_equal(_train(step, (params, handle), vma=vma)[0], _expected(1))


@pytest.mark.parametrize("vma", [False, True])
def test_sgd_with_an_older_handle_equals_an_older_pmean(*, vma: bool) -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        params, (oldest, *handles) = state
        new = jax_optireduce.begin(_gradients(params, x, y), "dp")
        means = jax_optireduce.end(oldest, after=new)
        return _updated(params, means), (*handles, new)

    params = _parameters()
    handles = tuple(jax_optireduce.empty_handle(params, "dp") for _ in range(3))
    _check_equal(_train(step, (params, handles), vma=vma)[0], _expected(3))


@pytest.mark.parametrize("vma", [False, True])
def test_an_end_in_front_of_the_next_step_has_no_delay(*, vma: bool) -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        params, handle = state
        params = _updated(params, jax_optireduce.end(handle))
        handle = jax_optireduce.begin(_gradients(params, x, y), "dp")
        return params, handle

    def last(state: Any) -> Any:
        params, handle = state
        return _updated(params, jax_optireduce.end(handle))

    params = _parameters()
    handle = jax_optireduce.empty_handle(params, "dp")
    state = _train(step, (params, handle), vma=vma)
    _check_equal(_mapped(last, _P(), _P(), vma=vma)(state), _expected(0))


@pytest.mark.parametrize("vma", [False, True])
def test_a_handle_is_a_carried_value_of_scan(*, vma: bool) -> None:
    def step(state: Any, batch: Any) -> Any:
        params, handle = state
        following = jax_optireduce.begin(_gradients(params, *batch), "dp")
        means = jax_optireduce.end(handle, after=following)
        return (_updated(params, means), following), None

    def train(params: Any, x: Any, y: Any) -> Any:
        state = params, jax_optireduce.empty_handle(params, "dp")
        return lax.scan(step, state, (x, y))[0][0]

    batches = jax.tree.map(lambda *rows: jnp.stack(rows), *_batches())
    in_specs = (_P(), _P(None, "dp"), _P(None, "dp"))
    params = _mapped(train, in_specs, _P(), vma=vma)(_parameters(), *batches)
    _check_equal(params, _expected(1))


def test_pmap_carries_a_handle_for_each_device() -> None:
    @functools.partial(jax.pmap, axis_name="dp", devices=jax.devices()[:4])
    def step(handle: Any, x: Any) -> Any:
        following = jax_optireduce.begin(x, "dp", mean=False)
        return following, jax_optireduce.end(handle, after=following)

    rows = jnp.arange(8.0).reshape(4, 2)
    empty = jax_optireduce.empty_handle(rows[0], "dp", mean=False)
    handle = jax.tree.map(lambda x: jnp.stack([x] * 4), empty)
    handle, first = step(handle, rows)
    _, second = step(handle, rows)
    np.testing.assert_array_equal(first, np.zeros((4, 2)))
    np.testing.assert_array_equal(second, np.tile(rows.sum(0), (4, 1)))


# --- Values --------------------------------------------------------------------------


def _tree(x: jax.Array) -> dict[str, Any]:
    return {
        "float": x,
        "half": x.astype(jnp.bfloat16)[:, None],
        "int": x.astype(jnp.int32),
        "bool": x > 3,
        "none": x[:0],
        "scalar": x[0],
        "number": 3.0,
    }


@pytest.mark.parametrize("vma", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_all_dtypes_have_the_results_of_lax(*, mean: bool, vma: bool) -> None:
    def ours(x: Any) -> Any:
        handle = jax_optireduce.begin(_tree(x), "dp", mean=mean, mode="exact")
        return jax_optireduce.end(handle)

    def theirs(x: Any) -> Any:
        return (lax.pmean if mean else lax.psum)(_tree(x), "dp")

    x = jnp.arange(20.0)
    got = _mapped(ours, _P("dp"), _P(), vma=vma)(x)
    wanted = _mapped(theirs, _P("dp"), _P(), vma=vma)(x)
    for name in wanted:
        assert got[name].dtype == wanted[name].dtype or name == "number"
        np.testing.assert_array_equal(
            np.asarray(got[name], np.float32), np.asarray(wanted[name], np.float32)
        )


@pytest.mark.parametrize("vma", [False, True])
def test_groups_have_calls_of_their_own(*, vma: bool) -> None:
    mesh = mesh_of((2, 4), ("model", "dp"))

    def step(x: Any) -> Any:
        handle = jax_optireduce.empty_handle(x, "dp", mean=False)
        total = jnp.zeros_like(lax.psum(x, "dp"))
        for _ in range(2):
            following = jax_optireduce.begin(x, "dp", mean=False)
            total += jax_optireduce.end(handle, after=following)
            handle = following
        return total + jax_optireduce.end(handle)

    x = jnp.arange(16.0)
    spec = _P(("model", "dp"))
    got = _mapped(step, spec, _P("model"), vma=vma, mesh=mesh)(x)
    np.testing.assert_array_equal(got, 2 * x.reshape(2, 4, 2).sum(1).reshape(-1))


@pytest.mark.parametrize("vma", [False, True])
def test_buckets_end_one_by_one(*, vma: bool) -> None:
    def ours(x: Any) -> Any:
        leaves = [i * x for i in range(5)]
        return jax_optireduce.end(jax_optireduce.begin(leaves, "dp", mean=False))

    with _other_session(bucket_bytes=16):
        program = _mapped(ours, _P("dp"), _P(), vma=vma)
        got = jax.block_until_ready(program(jnp.arange(16.0)))
        counters = jax_optireduce.stats()
    assert (counters["calls_completed"], counters["handles_open"]) == (5, 0)
    for i, leaf in enumerate(got):
        np.testing.assert_array_equal(leaf, i * np.arange(16.0).reshape(4, 4).sum(0))


def test_the_statistics_are_those_of_the_call() -> None:
    def step(handle: Any, x: Any) -> Any:
        following = jax_optireduce.begin(x, "dp", name="numbered")
        _, stats = jax_optireduce.end(handle, after=following, return_stats=True)
        return following, stats

    mapped = _mapped(step, (_P(), _P("dp")), _P(), vma=True)
    handle = jax_optireduce.empty_handle(jnp.zeros(2), "dp")
    seen = []
    for _ in range(3):
        handle, stats = mapped(handle, jnp.ones(8))
        seen.append((int(stats.slowest_process), int(stats.sequence)))
    assert seen == [(-1, 0), (0, 0), (0, 1)]


def test_a_program_of_the_backend_xla_is_the_same() -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        params, handle = state
        following = jax_optireduce.begin(_gradients(params, x, y), "dp")
        means = jax_optireduce.end(handle, after=following)
        return _updated(params, means), following

    with _other_session(backend="xla"):
        params = _parameters()
        for vma in (False, True):
            handle = jax_optireduce.empty_handle(params, "dp")
            state = (jax.tree.map(jnp.copy, params), handle)
            _check_equal(_train(step, state, vma=vma)[0], _expected(1))


# --- Errors --------------------------------------------------------------------------


def _begin_program(name: str, **arguments: Any) -> Callable[..., Any]:
    return _mapped(
        lambda x: jax_optireduce.begin(x, "dp", name=name, **arguments),
        _P("dp"),
        _P(),
        vma=False,
    )


_end_program = _mapped(jax_optireduce.end, _P(), _P(), vma=False)
_ERRORS = (jax.errors.JaxRuntimeError, ValueError)


def test_a_handle_is_ended_once() -> None:
    handle = _begin_program("once")(jnp.ones(8))
    np.testing.assert_array_equal(_end_program(handle), np.ones(2))
    with pytest.raises(_ERRORS, match="was ended before"):
        jax.block_until_ready(_end_program(handle))
    # The collective still works.
    handle = _begin_program("once")(jnp.ones(8))
    np.testing.assert_array_equal(_end_program(handle), np.ones(2))


def test_a_handle_of_another_session_is_an_error() -> None:
    handle = _begin_program("before")(jnp.ones(8))
    jax.block_until_ready(handle)
    with (
        _other_session(),
        pytest.raises(_ERRORS, match=r"another session.*empty_handle"),
    ):
        jax.block_until_ready(_end_program(handle))


def test_a_changed_handle_is_an_error() -> None:
    handle = _begin_program("changed")(jnp.ones(8))
    changed = jax.tree.map(lambda token: token.at[2].add(5), handle)
    with pytest.raises(_ERRORS, match="no call of this device belongs to the handle"):
        jax.block_until_ready(_end_program(changed))
    jax.block_until_ready(_end_program(handle))


def test_lost_handles_take_a_bounded_memory() -> None:
    native = communicator.current("begin")._native
    before = jax_optireduce.stats()
    program = _begin_program("lost")
    handles = []
    for i in range(20):
        handles.append(jax.block_until_ready(program(jnp.full(8, i))))
        # Only the results of calls that are over are dropped.
        while native.begun_calls_under_way():
            time.sleep(0.001)
    counters = jax_optireduce.stats()
    assert counters["handles_open"] - before["handles_open"] == 8 * 4
    assert counters["handles_dropped"] - before["handles_dropped"] == 12 * 4
    with pytest.raises(_ERRORS, match=r"8 open handles.*handles_dropped"):
        jax.block_until_ready(_end_program(handles[11]))
    for i in range(12, 20):
        result = jax.block_until_ready(_end_program(handles[i]))
        np.testing.assert_array_equal(result, np.full(2, i))
    assert jax_optireduce.stats()["handles_open"] == before["handles_open"]


def test_begin_refuses_places_where_it_cannot_work() -> None:
    begin = functools.partial(jax_optireduce.begin, axis_name="dp")

    def batched(x: Any) -> Any:
        return jax.vmap(begin)(x)

    def differentiated(x: Any) -> Any:
        def loss(x: Any) -> Any:
            return jax_optireduce.end(begin(x)).sum()

        return jax.grad(loss)(x)

    for function, message in (
        (batched, "cannot be mapped by jax.vmap"),
        (differentiated, "cannot be differentiated"),
        (jax_optireduce.end, "end needs the handle that begin returned"),
    ):
        with pytest.raises(jax_optireduce.UsageError, match=message):
            _mapped(function, _P("dp"), _P("dp"), vma=False)(jnp.ones((8, 2)))
    with pytest.raises(jax_optireduce.UsageError, match=r"an axis of jax\.vmap"):
        jax.vmap(begin, axis_name="dp")(jnp.ones((4, 2)))
    partly = jax.shard_map(
        begin,
        mesh=mesh_of((4, 2), ("dp", "fsdp")),
        in_specs=_P("dp"),
        out_specs=_P(),
        axis_names={"dp"},
        check_vma=False,
    )
    with pytest.raises(jax_optireduce.UsageError, match=r"\['fsdp'\] are not manual"):
        jax.jit(partly)(jnp.ones((8, 2)))
