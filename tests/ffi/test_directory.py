"""The collectives that a rank knows, by identity and by name."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native


def collective(name="x", *, elements=100, members=(0, 1, 2), description=None):
    return native.Collective(
        name,
        mode="bounded",
        members=list(members),
        elements=elements,
        description=f"{name}: float32[{elements}]"
        if description is None
        else description,
        fingerprint=1,
        wire_format="float32",
    )


def test_a_collective_is_learnt_once():
    directory = native.Directory(0)
    first = directory.learn(collective())
    assert directory.learn(collective()) == first
    assert directory.size == 1
    assert directory.find(first) == "x: float32[100]"
    assert directory.find(first ^ 1) is None


def test_the_first_description_that_is_not_empty_is_kept():
    directory = native.Directory(0)
    known = directory.learn(collective(description=""))
    assert directory.find(known) == ""
    directory.learn(collective(description="of the program"))
    directory.learn(collective(description="of a peer"))
    assert directory.find(known) == "of the program"


@pytest.mark.parametrize(
    "other", [{"elements": 101}, {"members": (0, 1)}], ids=["elements", "members"]
)
def test_other_facts_under_one_name_are_another_collective(other):
    directory = native.Directory(0)
    first = directory.learn(collective())
    second = directory.learn(collective(**other))
    assert directory.named("x") == [first, second]
    assert directory.size == 2


@hypothesis.given(st.lists(st.sampled_from("abc"), min_size=1, max_size=20))
def test_those_of_a_name_are_listed_in_the_order_in_which_they_were_learnt(names):
    directory = native.Directory(1)
    learnt: dict[str, list[int]] = {}
    for elements, name in enumerate(names, start=1):
        known = directory.learn(collective(name, elements=elements))
        learnt.setdefault(name, []).append(known)
    for name, ids in learnt.items():
        assert directory.named(name) == ids


def test_a_collective_that_only_a_peer_has_called_is_found():
    directory = native.Directory(0)
    ours, theirs = directory.learn(collective("x")), directory.learn(collective("y"))
    directory.announce(ours, 1, 5.0)
    directory.announce(theirs, 1, 6.0)
    directory.submit(ours)
    assert directory.announced_only(1, 5.5) is None
    assert directory.announced_only(1, 6.0) == theirs
    assert directory.announced_only(2, 9.0) is None
