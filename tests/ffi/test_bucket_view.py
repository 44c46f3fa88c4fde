"""Leaves as one bucket of bytes, without a copy where a range lies in one leaf."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

leaves_of_bytes = st.lists(st.binary(max_size=6).map(list), max_size=6)


def joined(leaves):
    return [byte for leaf in leaves for byte in leaf]


@hypothesis.given(leaves_of_bytes, st.data())
def test_any_range_reads_as_of_the_joined_leaves(leaves, data):
    view = native.BucketView(leaves)
    whole = joined(leaves)
    assert view.bytes == len(whole)
    offset = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - offset))
    values, copied = view.read(offset, length)
    assert values == whole[offset : offset + length]
    # A copy is made of a range over several leaves only.
    ends = {0}
    for leaf in leaves:
        ends.add(max(ends) + len(leaf))
    crosses = any(offset < end < offset + length for end in ends)
    assert copied == crosses


@hypothesis.given(leaves_of_bytes, st.data())
def test_a_write_changes_its_range_and_nothing_else(leaves, data):
    view = native.BucketView(leaves)
    whole = joined(leaves)
    offset = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - offset))
    written = data.draw(st.binary(min_size=length, max_size=length).map(list))
    view.write(offset, written)
    whole[offset : offset + length] = written
    assert joined(view.leaves) == whole
    view.zero(offset, length)
    whole[offset : offset + length] = [0] * length
    assert joined(view.leaves) == whole
    assert [len(leaf) for leaf in view.leaves] == [len(leaf) for leaf in leaves]


def test_empty_leaves_are_passed_over():
    view = native.BucketView([[], [1, 2], [], [], [3]])
    assert view.read(1, 2) == ([2, 3], True)
    assert view.read(2, 1) == ([3], False)


@hypothesis.given(leaves_of_bytes, st.integers(1, 4), st.integers(1, 5), st.data())
def test_a_segment_is_read_from_its_values_until_it_is_written(
    leaves, members, segment_bytes, data
):
    view = native.ValuesApart(leaves, members, segment_bytes)
    expected, written = joined(leaves), [0] * len(joined(leaves))
    for segment, (begin, end) in enumerate(view.segments):
        assert view.read(segment) == expected[begin:end]
    numbers = st.integers(0, max(len(view.segments) - 1, 0))
    for segment in data.draw(st.lists(numbers)) if view.segments else []:
        begin, end = view.segments[segment]
        value = data.draw(st.integers(0, 255))
        view.fill(segment, value)
        expected[begin:end] = written[begin:end] = [value] * (end - begin)
        assert view.read(segment) == expected[begin:end]
    for segment, (begin, end) in enumerate(view.segments):
        assert view.read(segment) == expected[begin:end]
    assert joined(view.results) == written
    view.settle()
    assert joined(view.results) == expected
    assert view.values == leaves
