"""The snippets of the page on observability, as written."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import prometheus_client
import pytest
from jax.sharding import AxisType, PartitionSpec
from tensorboardX.proto import event_pb2

import jax_optireduce

PAGE = Path(__file__).parents[2] / "docs/observability.md"
STEPS = 3


def _snippet(heading: str) -> str:
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[0]


@pytest.fixture(name="mesh")
def _mesh():
    return jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))


@pytest.mark.usefixtures("communicator")
def test_statistics_are_written_for_tensorboard(tmp_path, monkeypatch, mesh):
    def step(params, batch):
        gradients, stats = jax_optireduce.average_gradients(
            params * batch, "data", name="tensorboard", return_stats=True
        )
        return params - gradients, stats

    spec = PartitionSpec()
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False
    )
    monkeypatch.chdir(tmp_path)
    scope = {
        "STEPS": STEPS,
        "step": jax.jit(mapped),
        "params": jnp.ones(8),
        "batch": jnp.float32(0.5),
    }
    exec(compile(_snippet("TensorBoard"), str(PAGE), "exec"), scope)  # noqa: S102
    (path,) = (tmp_path / "runs/rank 0").iterdir()
    events = [event_pb2.Event.FromString(record) for record in _records(path)]
    written = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    fields = vars(scope["stats"])
    assert {(at, tag) for at, tag, _ in written} == {
        (at, f"collectives/{name}") for at in range(STEPS - 1) for name in fields
    }
    numbers = [value for _, tag, value in written if tag.endswith("/sequence")]
    assert numbers == [0, 1]


def _records(path: Path) -> list[bytes]:
    """Returns the records of a file of events: length, checksum, data, checksum."""
    content, records = path.read_bytes(), []
    while content:
        size = int.from_bytes(content[:8], "little")
        records.append(content[12 : 12 + size])
        content = content[16 + size :]
    return records


@pytest.mark.usefixtures("communicator")
def test_the_snippet_for_prometheus_serves_metrics(monkeypatch):
    registry = prometheus_client.CollectorRegistry()
    served = []
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    # The port of the page may be in use here.
    monkeypatch.setattr(
        prometheus_client,
        "start_http_server",
        lambda port, addr: served.append((port, addr)),
    )
    exec(compile(_snippet("Prometheus"), str(PAGE), "exec"), {})  # noqa: S102
    assert served == [(9464, "127.0.0.1")]
    assert b"jax_optireduce_live_processes" in prometheus_client.generate_latest(
        registry
    )


@pytest.mark.usefixtures("communicator")
def test_the_snippet_for_replicas_runs(mesh):
    check, in_program = _snippet("Replicas").split("# In the program")
    params = {"w": jnp.ones(8)}
    exec(check, {"params": params})  # noqa: S102

    def program(params, number):
        scope = {"params": params, "number": number, "jax": jax, "jnp": jnp}
        scope["jax_optireduce"] = jax_optireduce
        exec(f"#{in_program}", scope)  # noqa: S102
        return scope["drift"]

    spec = PartitionSpec()
    mapped = jax.shard_map(
        program, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False
    )
    for number in (99, 100):
        assert np.asarray(jax.jit(mapped)(params, number)).tolist() == [0, 0]
