"""The double-ended queue, compared with Python's."""

import collections

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

OPERATIONS = st.one_of(
    st.tuples(st.just("push_back"), st.integers(0, 1000)),
    st.tuples(st.just("push_front"), st.integers(0, 1000)),
    st.tuples(st.just("pop_front")),
    st.tuples(st.just("clear")),
)


@hypothesis.given(st.lists(OPERATIONS, max_size=100))
def test_a_ring_holds_what_a_deque_holds(operations):
    ring, expected = native.Ring(), collections.deque()
    for name, *values in operations:
        if name == "pop_front" and not expected:
            continue
        getattr(ring, name)(*values)
        match name:
            case "push_back":
                expected.append(values[0])
            case "push_front":
                expected.appendleft(values[0])
            case "pop_front":
                expected.popleft()
            case "clear":
                expected.clear()
        assert ring.values() == [*expected]
