"""Programs compiled by the compilers of GPU and TPU, for devices that are not here.

`make compile-accelerators` installs the plug-ins and runs these tests; elsewhere they
are skipped. They show that programs compile, and their compiled text. They do not show
that the programs run.
"""

import functools
import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_optireduce import _stats
from jax_optireduce._jax_version import release
from jax_optireduce._session import accelerators

_PROGRAM = Path(__file__).parent / "programs/compile_program.py"
_PACKAGES = {
    "cuda": ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"),
    "tpu": ("libtpu",),
}
# A leaf of the train step on a device: a quarter of two matrices of 64 x 128, and of a
# vector of 128 + 1 elements, padded.
_ELEMENTS = 2 * 64 * 128 // 4 + math.ceil(129 / 4)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(params=["cuda", "tpu"])
def platform(request):
    packages = _PACKAGES[request.param]
    if not any(map(_is_installed, packages)):
        pytest.skip(f"make compile-accelerators installs {' or '.join(packages)}")
    least = release(accelerators._CUDA_FROM)
    if request.param == "cuda" and release(jax.__version__) < least:
        pytest.skip(f"JAX {jax.__version__} is too old for CUDA devices")
    return request.param


@functools.cache
def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    # A child, because the GPU compiler ends its process where it meets an error.
    return subprocess.run(
        [sys.executable, _PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def _compiled(platform: str, name: str, *flags: str) -> str:
    result = _run(platform, name, *flags)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "ENTRY" in result.stdout, result.stdout[-3000:]
    return result.stdout


def _bodies(text: str) -> dict[str, str]:
    """Returns the computations of a compiled text, by name."""
    found = re.findall(
        r"^(?:ENTRY )?%([\w.-]+) \([^\n]*{\n(.*?)^}", text, re.DOTALL | re.MULTILINE
    )
    return dict(found)


def _entry(text: str) -> str:
    return text[text.index("\nENTRY") :]


def _elements(shapes: str) -> int:
    sizes = re.findall(r"\w+\[([\d,]*)\]", shapes)
    return sum(math.prod(int(n) for n in size.split(",") if n) for size in sizes)


def _groups(line: str) -> np.ndarray:
    """Returns the devices of each group of a collective, [groups, size]."""
    if literal := re.search(r"replica_groups={({[\d,{}]+})}", line):
        return np.array(
            [g.split(",") for g in re.findall(r"{([\d,]+)}", literal[1])], int
        )
    iota = re.search(
        r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line
    )
    if iota:
        shape = [int(n) for n in iota[3].split(",")]
        order = [int(n) for n in iota[4].split(",")] if iota[4] else range(len(shape))
        numbers = np.arange(math.prod(shape)).reshape(shape).transpose(order)
        return numbers.reshape(int(iota[1]), int(iota[2]))
    mesh = re.search(
        r"replica_groups=mesh\[([^\]]+)\]"
        r"(?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))? {([^}]+)}",
        line,
    )
    assert mesh, line
    axes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
    sizes = [int(n) for n in axes.values()]
    numbers = np.arange(math.prod(sizes))
    if mesh[2]:
        shape = [int(n) for n in mesh[2].split(",")]
        numbers = numbers.reshape(shape).transpose([int(n) for n in mesh[3].split(",")])
    along = [list(axes).index(name) for name in re.findall(r"'(\w+)'", mesh[4])]
    others = [i for i in range(len(sizes)) if i not in along]
    numbers = numbers.reshape(sizes).transpose([*others, *along])
    return numbers.reshape(-1, math.prod(sizes[i] for i in along))


def _slow_elements(text: str) -> list[int]:
    """Returns the elements of each collective of XLA between hosts or slices."""
    found = []
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all"
    for shapes, line in re.findall(
        rf"^\s*(?:ROOT )?%\S+ = (.*?) (?:(?:{kinds})(?:-start)?\((.*))$",
        text,
        re.MULTILINE,
    ):
        hosts = _groups(line) // 4
        if (hosts != hosts[:, :1]).any():
            found.append(_elements(shapes))
    # Between slices of TPUs they are transfers to the host.
    for shapes, line in re.findall(r"^\s*%\S+ = (.*?) send\((.*)$", text, re.MULTILINE):
        if "xla_megascale_runtime" in line:
            found.append(_elements(shapes.split(", u32[]")[0]))
    return found


def _host_calls(text: str) -> list[str]:
    """Returns the body of each host computation, which has a start and a done."""
    starts = re.findall(
        r'custom-call-start\(.*custom_call_target="HostExecute".*called_computations='
        r"{%([\w.-]+)}",
        text,
    )
    assert len(starts) == len(re.findall(r"custom-call-done\(", text))
    return [_bodies(text)[name] for name in starts]


def test_the_handlers_are_registered(platform):
    (line,) = re.findall(r"^plugin: (.*)$", _compiled(platform, "train"), re.MULTILINE)
    assert re.fullmatch(rf"{platform} 0\.\d+ ", line)


def test_a_train_step_has_one_host_computation_of_the_parts_of_a_device(platform):
    text = _compiled(platform, "train")
    (body,) = _host_calls(text)
    (call,) = re.findall(r"= \((.*?)\) custom-call\(.*jax_optireduce_allreduce", body)
    assert f"f32[{_ELEMENTS}]" in call
    # None on the device.
    assert text.count('custom_call_target="jax_optireduce_allreduce"') == 1


def test_the_loss_is_the_only_value_that_xla_sends_between_hosts(platform):
    alone = _slow_elements(_compiled(platform, "train"))
    everything = _slow_elements(_compiled(platform, "train_by_xla"))
    # The TPU sends tiles of 128 elements.
    assert sum(alone) <= (1 if platform == "cuda" else 128)
    assert sum(everything) >= _ELEMENTS
    assert _slow_elements(_compiled(platform, "train_with_loss")) == []


@pytest.mark.parametrize("name", ["manual", "manual_typed"])
def test_leaves_of_a_dtype_are_one_vector(platform, name):
    (body,) = _host_calls(_compiled(platform, name))
    calls = re.findall(r"= \((.*?)\) custom-call\(.*jax_optireduce_allreduce", body)
    vectors = [re.findall(r"(\w+)\[([\d,]+)\]", call) for call in calls]
    # Besides the statistics. Booleans are counted in int32.
    stats = str(_stats.VECTOR_SIZE)
    dtypes = sorted(dtype for call in vectors for dtype, size in call if size != stats)
    assert dtypes == ["bf16", "f16", "f32", "s32"]
    assert not any("," in size for call in vectors for _, size in call)


def test_independent_calls_are_joined_by_xla(platform):
    (body,) = _host_calls(_compiled(platform, "two_calls"))
    assert body.count('custom_call_target="jax_optireduce_allreduce"') == 2


@pytest.mark.parametrize("flags", [(), ("one_device",)])
def test_a_call_after_another_has_its_own_operands_alone(platform, flags):
    """In a program for one device it had a tuple of the call before, which fails."""
    text = _compiled(platform, "after_one_another", *flags)
    bodies = _host_calls(text)
    assert len(bodies) == 2
    for body in bodies:
        # The bucket; group and rank.
        assert body.count(" parameter(") == 2
        (results,) = re.findall(r"ROOT %\S+ = \((.*?)\) tuple\(", body)
        assert "(" not in results


def test_begins_are_apart_and_ends_are_joined(platform):
    bodies = _bodies(_compiled(platform, "two_steps")).values()
    targets = [
        re.findall(r'custom_call_target="jax_optireduce_(\w+)"', body)
        for body in bodies
    ]
    assert sorted(filter(None, targets)) == [["begin"]] * 3 + [["end"] * 3]


def test_a_drain_and_a_resync_compile(platform):
    text = _compiled(platform, "drain_and_resync")
    calls = re.findall(r'custom_call_target="jax_optireduce_allreduce"', text)
    assert len(calls) == len(
        re.findall("optireduce_allreduce", "".join(_host_calls(text)))
    )
    assert len(calls) >= 3


def test_a_lossy_train_step_rotates_the_parts_of_a_device(platform):
    text = _compiled(platform, "train_lossy")
    assert "jax_optireduce_hadamard" not in text
    assert _slow_elements(text) == []
    # Whole blocks of 1024 elements.
    rotated = -(-_ELEMENTS // 1024) * 1024
    assert any(f"f32[{rotated}]" in body for body in _host_calls(text))


@pytest.mark.parametrize("name", ["lossy", "lossy_counted"])
def test_the_rotation_is_on_the_device_and_joined_with_its_neighbours(platform, name):
    text = _compiled(platform, name)
    assert "jax_optireduce_hadamard" not in text
    entry = _entry(text)
    # The signs are bits of integers by the element: no such array is in memory.
    arrays = re.findall(r"= (\w+\[[\d,]+\])\S* (\w[\w-]*)\(", entry)
    large = {kind for shape, kind in arrays if _elements(shape) >= 4096}
    assert not large & {"xor", "select", "negate", "multiply", "iota", "convert"}, large
    # The last step of the rotation and the update of the weights are one operation.
    (root,) = re.findall(r"ROOT .* fusion\(.*calls=%([\w.-]+)", entry)
    body = _bodies(text)[root]
    assert " xor(" in body
    assert " subtract(" in body
    host = _host_calls(text)
    assert len(host) == (2 if name == "lossy_counted" else 1)
    numbers = [body for body in host if "jax_optireduce_sequence" in body]
    assert len(numbers) == len(host) - 1
    # The number of a call is taken with one element.
    assert all("f32[4096]" not in body for body in numbers)


def test_a_call_without_handlers_would_end_the_compilation(platform):
    """The reason of the refusal: the error of the compiler itself."""
    result = _run(platform, "manual", "unregistered", "unchecked")
    expected = (
        "No FFI handler registered for jax_optireduce_allreduce on a platform Host"
    )
    if platform == "tpu":
        assert f"failed: NOT_FOUND: {expected}" in result.stdout
    else:
        assert result.returncode != 0
        assert "Check failed" in result.stderr
        assert expected in result.stderr


def test_a_call_without_handlers_is_refused_before_the_compiler(platform):
    result = _run(platform, "manual", "unregistered")
    assert result.returncode == 0, result.stderr[-3000:]
    assert f"refused: psum cannot be compiled for {platform}" in result.stdout
