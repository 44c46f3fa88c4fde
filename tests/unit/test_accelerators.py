"""Plug-ins of accelerators: registration, refusals, and the text of the programs."""

import ctypes
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from device_meshes import mesh_of
from jax.sharding import PartitionSpec

import jax_optireduce
import optireduce_testing
from jax_optireduce import _native
from jax_optireduce._session import accelerators

_P = PartitionSpec
_FAKE = Path(optireduce_testing.__file__).with_name("liboptireduce_fake_plugin.so")
_HOST_TARGETS = [
    f"jax_optireduce_{call}" for call in ("allreduce", "sequence", "begin", "end")
]

# See tests/native/fake_plugin/fake_plugin.cc.
_REFUSALS = {
    1: r"its GetPjrtApi\(\) returns null",
    2: "its PJRT_Api has 16 bytes, at least 56 are expected",
    3: r"it has version 1.999 of the PJRT C API, version 0.x is expected",
    4: "it has no PJRT extension for FFI",
    5: "its PJRT extension for FFI has 40 bytes, at least 48 are expected",
    6: "its PJRT extension for FFI does not register handlers",
    7: "its list of PJRT extensions has no end",
    8: "it refuses the handler 'jax_optireduce_allreduce': there is a handler of this",
    9: "a PJRT extension of it has 8 bytes, at least 24 are expected",
}


@pytest.fixture
def plugin(tmp_path):
    """Loads a copy of the fake plug-in; returns its path and the library."""

    def load(name="fake_cuda.so", fault=0):
        path = shutil.copy(_FAKE, tmp_path / name)
        library = ctypes.CDLL(path)
        ctypes.c_int.in_dll(library, "fault").value = fault
        return str(path), library

    return load


@pytest.fixture
def loaded(plugin, monkeypatch):
    """Makes fake plug-ins the only ones of this process.

    Their names are not those of real plug-ins, as they stay in the process.
    """
    monkeypatch.setattr(accelerators, "_asked", {})
    monkeypatch.setattr(accelerators, "_CUDA_FROM", "0.0.0")
    names = {f"fake_{platform}": platform for platform in accelerators.PLATFORMS}
    monkeypatch.setattr(accelerators, "_PLATFORMS", names)
    paths = set()
    monkeypatch.setattr(accelerators, "mapped_libraries", lambda: paths)

    def load(name="fake_cuda.so", fault=0):
        path, library = plugin(name, fault)
        paths.add(path)
        return path, library

    return load


def test_the_handlers_are_registered_for_the_host(plugin):
    path, library = plugin()
    assert _native.register_with_plugin(path) == (0, 999)
    count = ctypes.c_int.in_dll(library, "registrations").value
    assert count == len(_HOST_TARGETS)
    targets = ((ctypes.c_char * 64) * 8).in_dll(library, "targets")
    platforms = ((ctypes.c_char * 16) * 8).in_dll(library, "platforms")
    handlers = (ctypes.c_void_p * 8).in_dll(library, "handlers")
    sizes = (ctypes.c_size_t * 8).in_dll(library, "sizes")
    traits = (ctypes.c_int * 8).in_dll(library, "traits")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsules = _native.registrations()
    for i, target in enumerate(_HOST_TARGETS):
        assert targets[i].value.decode() == target
        assert platforms[i].value == b"Host"
        assert handlers[i] == pointer(capsules[target], None)
        # Without the padding at the end, as XLA counts it.
        assert (sizes[i], traits[i]) == (52, 0)


@pytest.mark.parametrize(("fault", "reason"), _REFUSALS.items())
def test_a_plugin_in_doubt_gets_no_handlers_and_the_reason_is_given(
    plugin, fault, reason
):
    path, library = plugin(fault=fault)
    with pytest.raises(RuntimeError, match=reason):
        _native.register_with_plugin(path)
    assert ctypes.c_int.in_dll(library, "registrations").value == 0
    assert ctypes.c_int.in_dll(library, "errors_alive").value == 0


def test_a_library_that_is_not_loaded_is_not_loaded_for_a_registration(tmp_path):
    path = str(shutil.copy(_FAKE, tmp_path / "fake_cuda.so"))
    with pytest.raises(RuntimeError, match="the process has not loaded it"):
        _native.register_with_plugin(path)
    assert path not in accelerators.mapped_libraries()


def test_a_library_that_is_no_plugin_is_refused():
    path = next(p for p in accelerators.mapped_libraries() if "libc.so" in p)
    with pytest.raises(RuntimeError, match=r"it is no PJRT plug-in: .*GetPjrtApi"):
        _native.register_with_plugin(path)


def test_loaded_plugins_are_found_by_their_files(plugin):
    path, _ = plugin()
    assert path in accelerators.mapped_libraries()


@pytest.mark.parametrize(
    ("path", "platform"),
    [
        ("/x/jax_plugins/xla_cuda12/xla_cuda_plugin.so", "cuda"),
        ("/x/jax_plugins/xla_rocm7/xla_rocm_plugin.so", "rocm"),
        ("/x/libtpu/libtpu.so", "tpu"),
        ("/lib/of_tpu.so", "tpu"),
        ("/lib/libcudart.so.12", ""),
        ("/lib/libc.so.6", ""),
    ],
)
def test_the_platform_follows_from_the_name_of_the_file(path, platform):
    environment = {"TPU_LIBRARY_PATH": "/lib/of_tpu.so"}
    assert accelerators.platform_of(path, environment) == platform


def test_init_registers_with_loaded_plugins_once(loaded, caplog):
    _, library = loaded()
    path, _ = loaded("fake_rocm.so", fault=4)
    for _ in range(2):
        with caplog.at_level("WARNING", "jax_optireduce"), jax_optireduce.init():
            count = ctypes.c_int.in_dll(library, "registrations").value
            assert count == len(_HOST_TARGETS)
    # The log names the plug-in without handlers, once.
    assert caplog.text.count(f"{path} has no handlers of jax_optireduce") == 1


def _mesh():
    return mesh_of((2, 2), ("slow", "fast"))


def _text(function, platform, *, axis_names=("slow", "fast"), check_vma=True):
    """Returns the lowered program of a function for another platform."""
    x = {"a": jnp.ones((4, 6)), "b": jnp.ones(8)}
    mapped = jax.shard_map(
        function,
        mesh=_mesh(),
        in_specs=_P("slow"),
        out_specs=_P(),
        axis_names=set(axis_names),
        check_vma=check_vma,
    )
    return jax.jit(mapped).trace(x).lower(lowering_platforms=(platform,)).as_text()


def _sum(x):
    return jax_optireduce.psum(x, "slow")


@pytest.mark.usefixtures("communicator")
class TestProgram:
    """The text of programs for a platform whose plug-in is a fake."""

    @pytest.mark.parametrize("check_vma", [True, False])
    @pytest.mark.parametrize("axes", [("slow", "fast"), ("slow",)])
    @pytest.mark.parametrize(
        ("platform", "name"), [("cuda", "fake_cuda.so"), ("tpu", "fake_tpu.so")]
    )
    def test_a_call_is_a_host_computation_of_one_vector(
        self, loaded, platform, name, axes, check_vma
    ):
        loaded(name)
        text = _text(_sum, platform, axis_names=axes, check_vma=check_vma)
        calls = re.findall(r'func.call @(\w+)\(.*_xla_compute_type = "host"', text)
        assert len(calls) == 1
        (body,) = re.findall(
            rf"func.func private @{calls[0]}\((.*?)\n  }}", text, re.DOTALL
        )
        assert "jax_optireduce_allreduce" in body
        # 2 x 6 and 4 elements of each device, or half of them.
        size = 16 if len(axes) == 2 else 8
        arguments = re.findall(r"tensor<([\w]+)>", body.split(") -> ")[0])
        # The bucket; group and rank.
        assert arguments == [f"{size}xf32", "2xi32"]
        # The number of a counted call is no operand.
        assert "dense<-1>" in body
        # No other call is left outside.
        assert text.count("jax_optireduce_allreduce(") == 1

    def test_a_given_step_is_an_operand(self, loaded):
        loaded()
        text = _text(
            lambda x: jax_optireduce.psum(x, "slow", step=x["b"][0].astype(int)), "cuda"
        )
        assert "dense<-1>" not in text
        assert re.search(r"call @\w+\(.*tensor<16xf32>, tensor<3xi32>\)", text)

    @pytest.mark.parametrize("counted", [True, False])
    def test_a_lossy_call_rotates_on_the_device(self, loaded, counted):
        loaded()

        def total(x):
            step = None if counted else x["b"][0].astype(int)
            return jax_optireduce.psum(x, "slow", mode="lossy", step=step)

        text = _text(total, "cuda")
        assert "jax_optireduce_hadamard" not in text
        # Two products to rotate and two to undo it.
        assert text.count("stablehlo.dot_general") == 4
        bodies = re.findall(r'func.call.*_xla_compute_type = "host"', text)
        assert len(bodies) == (2 if counted else 1)
        # The number is taken with one element, not with the bucket.
        found = re.findall(r"@jax_optireduce_sequence\(.*\) -> \((.*)\)", text)
        assert found == (["tensor<i32>, tensor<1xf32>"] if counted else [])

    @pytest.mark.parametrize(("fault", "reason"), _REFUSALS.items())
    def test_without_handlers_the_call_is_refused_with_the_reason(
        self, loaded, fault, reason
    ):
        path, _ = loaded(fault=fault)
        expected = (
            rf"psum cannot be compiled for cuda: the plug-in {re.escape(path)} has no "
            rf"handlers of jax_optireduce, because {reason}.*doctor.*"
            "JAX_OPTIREDUCE_BACKEND=xla"
        )
        with pytest.raises(jax_optireduce.UsageError, match=expected):
            _text(_sum, "cuda")

    @pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
    def test_without_a_plugin_the_call_is_refused(self, loaded, platform):
        del loaded
        with pytest.raises(
            jax_optireduce.UsageError,
            match=rf"not loaded a plug-in of JAX for {platform}",
        ):
            _text(_sum, platform)

    def test_one_of_two_plugins_without_handlers_is_enough_for_a_refusal(self, loaded):
        loaded("fake_cuda.so")
        loaded("fake_cuda_13.so", fault=4)
        with pytest.raises(
            jax_optireduce.UsageError, match="no PJRT extension for FFI"
        ):
            _text(_sum, "cuda")


@pytest.mark.usefixtures("communicator")
def test_a_call_in_two_steps_is_two_host_computations(loaded):
    loaded()

    def total(x):
        handle = jax_optireduce.begin(x, "slow")
        return jax_optireduce.end(handle, after=x["b"] * 2)

    text = _text(total, "cuda", check_vma=False)
    calls = re.findall(r'func.call @\w+\((.*?)\) .*_xla_compute_type = "host".*', text)
    assert len(calls) == 2
    begun = re.findall(r"@jax_optireduce_begin\(.*?: \((.*?)\) -> tensor<4xi32>", text)
    assert begun == ["tensor<2xi32>, tensor<i32>, tensor<16xf32>"]
    # One element stands for the array that is computed before the wait.
    ended = re.findall(r"@jax_optireduce_end\(.*?: \((.*?)\) -> \(tensor<(\d+)x", text)
    assert ended == [("tensor<2xi32>, tensor<4xi32>, tensor<1xf32>", "16")]


def test_the_plugin_of_an_old_jax_for_cuda_gets_no_handlers(loaded, monkeypatch):
    _, library = loaded()
    monkeypatch.setattr(accelerators, "_CUDA_FROM", "99.0.0")
    with pytest.raises(
        jax_optireduce.UsageError, match=r"CUDA devices need JAX .*openxla/xla#42349"
    ):
        accelerators.check("cuda", "psum")
    assert ctypes.c_int.in_dll(library, "registrations").value == 0
