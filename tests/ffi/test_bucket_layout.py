"""The division of a bucket into shards and segments."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native


@hypothesis.given(
    elements=st.integers(0, 5000),
    element_bytes=st.sampled_from([2, 4, 8]),
    members=st.integers(1, 20),
    payload_bytes=st.integers(8, 300),
)
def test_segments_cover_the_bucket_once_and_in_order(
    elements, element_bytes, members, payload_bytes
):
    segments = native.bucket_segments(elements, element_bytes, members, payload_bytes)
    position = 0
    owners = []
    for owner, offset, size in segments:
        assert offset == position
        assert 0 < size <= payload_bytes
        assert size % element_bytes == 0
        position += size
        owners.append(owner)
    assert position == elements * element_bytes
    assert owners == sorted(owners)


@hypothesis.given(elements=st.integers(0, 5000), members=st.integers(1, 20))
def test_shards_differ_by_at_most_one_element_and_the_longer_come_first(
    elements, members
):
    shard = [0] * members
    for owner, _, size in native.bucket_segments(elements, 4, members, 64):
        shard[owner] += size // 4
    quotient, remainder = divmod(elements, members)
    assert shard == [quotient + (owner < remainder) for owner in range(members)]


@pytest.mark.parametrize("elements", [1, 2, 3])
def test_with_fewer_elements_than_members_the_last_shards_are_empty(elements):
    owners = [owner for owner, _, _ in native.bucket_segments(elements, 4, 8, 1432)]
    assert owners == list(range(elements))
