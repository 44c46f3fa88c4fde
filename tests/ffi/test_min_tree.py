"""The tree of instants, compared with a list."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

INSTANTS = st.integers(0, 20)


@hypothesis.given(st.data())
def test_the_first_early_one_is_that_of_a_list(data):
    expected = [data.draw(INSTANTS)] * data.draw(st.integers(1, 600))
    tree = native.MinTree(len(expected), expected[0])
    indices = st.integers(0, len(expected) - 1)
    for index, instant in data.draw(
        st.lists(st.tuples(indices, INSTANTS), max_size=40)
    ):
        tree.set(index, instant)
        expected[index] = instant
        assert tree[index] == instant
        limit, start = data.draw(INSTANTS), data.draw(indices)
        early = [i for i in range(start, len(expected)) if expected[i] < limit]
        assert tree.first_before(limit, start) == min(early, default=len(expected))


def test_behind_the_last_one_there_is_none():
    tree = native.MinTree(32, 0)
    assert tree.first_before(1, 31) == 31
    assert tree.first_before(1, 32) == 32
