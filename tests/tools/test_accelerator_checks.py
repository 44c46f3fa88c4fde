"""`doctor` about GPU and TPU: its judgement, and plug-ins of this host."""

import ctypes
import shutil
from pathlib import Path

import pytest

import optireduce_testing
from jax_optireduce._session.accelerators import Plugin
from jax_optireduce.tools import accelerator_checks
from jax_optireduce.tools.check import Level

_FAKE = Path(optireduce_testing.__file__).with_name("liboptireduce_fake_plugin.so")


@pytest.mark.parametrize(("platform", "has_run"), [("cuda", True), ("tpu", False)])
def test_a_plugin_with_the_handlers_is_named_with_its_devices(platform, has_run):
    plugin = Plugin(platform=platform, path="/p.so", version="0.116")
    check = accelerator_checks.check_plugin(plugin, "0.12.0.1", 4, platform)
    assert check.level is Level.PASS
    assert "0.12.0.1, 4 devices on this host" in check.found
    assert "PJRT 0.116" in check.found
    assert ("compiles for, has not yet run on" in check.found) is not has_run
    assert ("tools/try_accelerator.py" in check.found) is not has_run


def test_a_plugin_without_the_handlers_comes_with_the_reason_and_two_remedies():
    plugin = Plugin(platform="tpu", path="/p.so", refusal="it has no PJRT extension")
    check = accelerator_checks.check_plugin(plugin, "0.0.1", 4, "tpu")
    assert check.level is Level.WARN
    assert "no handlers of this package: it has no PJRT extension" in check.found
    assert "pip install --upgrade 'jax[tpu]'" in check.remedy
    assert "JAX_OPTIREDUCE_BACKEND=xla" in check.remedy


@pytest.mark.parametrize(("cores", "level"), [(6, Level.PASS), (5, Level.WARN)])
def test_each_device_needs_a_core(cores, level):
    check = accelerator_checks.check_cores_of_devices(cores, 4)
    assert check.level is level
    assert bool(check.remedy) == (level is Level.WARN)


def test_infiniband_is_left_to_nccl():
    assert accelerator_checks.check_network([]).level is Level.PASS
    check = accelerator_checks.check_network(["mlx5_0"])
    assert check.level is Level.WARN
    assert "mlx5_0" in check.found


@pytest.mark.parametrize(
    ("slices", "hosts", "level"),
    [("2", "a", Level.WARN), ("3", "a", Level.PASS), ("4", "a,b", Level.PASS)],
)
def test_slices_are_counted(slices, hosts, level):
    environment = {"MEGASCALE_NUM_SLICES": slices, "TPU_WORKER_HOSTNAMES": hosts}
    (check,) = accelerator_checks.check_slices(environment)
    assert check.level is level
    assert ("a dead host also" in check.found) == ("," in hosts)
    assert accelerator_checks.check_slices({}) == []


@pytest.mark.parametrize("fault", [0, 4])
def test_an_installed_plugin_is_loaded_and_asked(tmp_path, monkeypatch, fault):
    # A package with the fake plug-in; its name is not that of a real one, as the
    # library stays in the process.
    folder = tmp_path / "fake_tpu_package"
    folder.mkdir()
    path = shutil.copy(_FAKE, folder / "fake.so")
    ctypes.c_int.in_dll(ctypes.CDLL(path), "fault").value = fault
    package = accelerator_checks.Package(
        name="jax_optireduce",
        module=folder.name,
        library="fake.so",
        platform="tpu",
        extra="tpu",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(accelerator_checks, "PACKAGES", (package,))
    first, *_ = accelerator_checks.examine(8, {})
    assert first.name == "plug-in of JAX for tpu"
    assert first.level is (Level.WARN if fault else Level.PASS)
    assert ("PJRT 0.999" in first.found) == (not fault)


def test_a_host_without_plugins_has_one_line(monkeypatch):
    monkeypatch.setattr(accelerator_checks, "PACKAGES", ())
    (check,) = accelerator_checks.examine(8, {})
    assert check.level is Level.PASS
    assert check.found == "no plug-in of JAX"
