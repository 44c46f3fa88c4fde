"""Values of some segments of a bucket, which are added element by element."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

# Segments of 4, the last of 2.
ELEMENTS, SEGMENT, FIRST, SEGMENTS = 18, 4, 1, 4
LAST = FIRST + SEGMENTS - 1


def make_store():
    return native.SegmentStore(
        elements=ELEMENTS, segment_elements=SEGMENT, first=FIRST, segments=SEGMENTS
    )


def values(segment, value):
    return [float(value)] * (2 if segment == LAST else SEGMENT)


def test_an_empty_store_holds_no_memory():
    store = make_store()
    assert store.empty
    assert (store.held_bytes, store.used_bytes) == (0, 0)


def test_the_first_values_are_taken_and_later_ones_added():
    store = make_store()
    store.add(2, [1.0, 2.0, 3.0, 4.0])
    store.add(2, [10.0, 20.0, 30.0, 40.0])
    assert store.get(2) == [11.0, 22.0, 33.0, 44.0]
    assert not store.contains(1)


def test_a_removed_segment_begins_again():
    store = make_store()
    store.add(LAST, values(LAST, 5))
    store.remove(LAST)
    assert not store.contains(LAST)
    store.add(LAST, values(LAST, 7))
    assert store.get(LAST) == [7.0, 7.0]


def test_replaced_values_are_not_added():
    store = make_store()
    store.add(1, values(1, 5))
    store.replace(1, values(1, 8))
    assert store.get(1) == [8.0] * SEGMENT


@pytest.mark.parametrize("how", ["clear", "remove"])
def test_a_store_that_is_empty_again_gives_its_memory_back(how):
    store = make_store()
    for segment in (1, LAST):
        store.add(segment, values(segment, 1))
    assert store.held_bytes == 4 * (SEGMENT + 2)
    assert store.used_bytes > 0
    if how == "clear":
        store.clear()
    else:
        for segment in (1, LAST):
            store.remove(segment)
    assert store.empty
    assert (store.held_bytes, store.used_bytes) == (0, 0)


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "replace"]),
            st.integers(FIRST, LAST),
            st.integers(-9, 9),
        ),
        max_size=40,
    )
)
def test_a_store_holds_what_a_dictionary_would(steps):
    store = make_store()
    model: dict[int, int] = {}
    for step, segment, value in steps:
        if step == "add":
            store.add(segment, values(segment, value))
            model[segment] = model.get(segment, 0) + value
        elif segment in model and step == "replace":
            store.replace(segment, values(segment, value))
            model[segment] = value
        elif segment in model:
            store.remove(segment)
            del model[segment]
        held = [s for s in range(FIRST, LAST + 1) if store.contains(s)]
        assert held == sorted(model)
        for kept, total in model.items():
            np.testing.assert_array_equal(store.get(kept), values(kept, total))
        assert store.held_bytes == sum(4 * len(values(s, 0)) for s in model)
