"""Slices of processes: as devices say, or as an option says."""

import types

import jax
import pytest

from jax_optireduce import RendezvousError
from jax_optireduce._jax import processes
from jax_optireduce._session import rendezvous


@pytest.mark.parametrize(
    ("given", "slices", "expected"),
    [
        (0, [None] * 6, 1),
        (0, [0, 0, 1, 1, 2, 2], 2),
        (0, [7, 7, 7, 4, 4, 4], 3),
        (0, [3, 1, 2], 1),
        (0, [0, 0], 2),
        (2, [None] * 6, 2),
        (1, [0, 0, 1, 1], 1),
        (3, [0, 0, 1, 1, 2, 2], 3),
    ],
)
def test_the_option_comes_before_the_devices(given, slices, expected):
    assert rendezvous._processes_per_slice(given, slices) == expected


@pytest.mark.parametrize(
    ("given", "slices", "message"),
    [
        (4, [None] * 6, "processes_per_slice=4 does not divide the 6 processes"),
        (0, [0, 0, 0, 1], r"equal parts .* they are \[0, 0, 0, 1\]"),
        (0, [0, 1, 0, 1], "of consecutive processes"),
        (0, [0, 0, None, None], "equal parts of consecutive processes"),
    ],
)
def test_slices_that_are_no_equal_parts_are_explained(given, slices, message):
    with pytest.raises(RendezvousError, match=message):
        rendezvous._processes_per_slice(given, slices)


def test_devices_of_other_platforms_are_not_asked(monkeypatch):
    def fail():
        pytest.fail("the program cannot configure its devices afterwards")

    monkeypatch.setattr(jax, "local_devices", fail)
    # The tests run on JAX_PLATFORMS=cpu.
    assert processes.own_slice() is None


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (types.SimpleNamespace(platform="tpu", slice_index=3), 3),
        (types.SimpleNamespace(platform="tpu"), None),
        # On other platforms the attribute may be the index of a host.
        (types.SimpleNamespace(platform="cpu", slice_index=3), None),
    ],
)
def test_the_slice_is_that_of_tpu_devices(monkeypatch, device, expected):
    platforms = types.SimpleNamespace(jax_platforms="tpu,cpu")
    monkeypatch.setattr(jax, "config", platforms)
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/nowhere")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert processes.own_slice() == expected
