"""Names of collectives: the same wherever a rank has installed its program."""

import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_optireduce import _identity

_PROGRAM = """
import jax
from jax_optireduce import _identity

def layer(x):
    print(_identity.call_site_key("psum"))
    return x

def train(x):
    return layer(layer(x))

def main():
    jax.jit(train)(1.0)

START
"""


def _keys(folder: Path, start: str) -> list[str]:
    folder.mkdir()
    path = folder / "program.py"
    path.write_text(textwrap.dedent(_PROGRAM).replace("START", start))
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.split("\n")[:-1]


def test_key_does_not_depend_on_the_folder_nor_on_who_started_the_trace(tmp_path):
    keys = _keys(tmp_path / "a", "main()")
    assert keys == _keys(tmp_path / "b", "(lambda: main())()")
    assert keys[0].startswith("program.py:6(")
    assert keys[0].endswith(") psum")


def test_key_tells_apart_the_ways_that_lead_to_a_shared_helper():
    def helper(x):
        keys.append(_identity.call_site_key("psum"))
        return x

    def program(x):
        x = helper(x)
        return helper(x)

    keys = []
    jax.jit(program)(1.0)
    assert len(set(keys)) == 2
    assert len({key.split("(")[0] for key in keys}) == 1


def test_calls_with_one_key_are_numbered_in_their_program():
    assert [_identity.numbered("k", i) for i in range(3)] == ["k", "k #1", "k #2"]


def test_name_tells_apart_meshes_and_groups():
    layouts = [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1]]]
    names = {_identity.collective_name("k", np.array(layout)) for layout in layouts}
    assert len(names) == len(layouts)


@pytest.mark.parametrize("key", ["x" * 1000, "\N{GREEK SMALL LETTER PI}" * 100])
def test_long_name_is_shortened_and_still_different(key):
    devices = np.array([[0, 1]])
    one, two = (_identity.collective_name(key + end, devices) for end in ("1", "2"))
    assert one != two
    assert len(one.encode()) <= 150


def test_fingerprint_depends_on_everything_that_ranks_must_agree_on():
    def fingerprint(shape=(2, 3), dtype="float32", **changed):
        about = {
            "mode": "exact",
            "wire_format": "float32",
            "devices": np.arange(4).reshape(2, 2),
            "rotated": False,
            **changed,
        }
        return _identity.fingerprint([jax.ShapeDtypeStruct(shape, dtype)], **about)

    variants = [
        fingerprint(),
        fingerprint(shape=(3, 2)),
        fingerprint(dtype="int32"),
        fingerprint(mode="lossy"),
        fingerprint(mode="lossy", rotated=True),
        fingerprint(devices=np.arange(4).reshape(1, 4)),
        fingerprint(devices=np.arange(4, 8).reshape(2, 2)),
        fingerprint(wire_format="int8"),
    ]
    assert len(set(variants)) == len(variants)
    assert fingerprint() == fingerprint()
    assert all(-(2**63) <= variant < 2**63 for variant in variants)


def test_description_names_the_call_and_shortens_a_long_list():
    leaves = [jax.ShapeDtypeStruct((i, 2), "float32") for i in range(1, 6)]
    about = {"mode": "lossy", "wire_format": "int8", "group_size": 4, "rotated": True}
    text = _identity.describe("grads", leaves, **about)
    assert text == (
        "'grads' (float32[1,2], [2,2], [3,2] and 2 more, 30 elements, "
        "mode lossy, as int8, rotated, 4 ranks)"
    )
