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


@hypothesis.given(st.data(), st.integers(0, 5000), st.integers(1, 20))
def test_owners_have_the_bucket_and_other_members_nothing(data, elements, members):
    owners = data.draw(st.integers(1, members))
    first = data.draw(st.integers(0, members - 1))
    segments = native.bucket_segments(
        elements, 4, members, 64, first_owner=first, owners=owners
    )
    shard = [0] * members
    position = 0
    for owner, offset, size in segments:
        assert offset == position
        position += size
        shard[owner] += size // 4
    assert position == elements * 4
    chosen = sorted((first + i) % members for i in range(owners))
    quotient, remainder = divmod(elements, owners)
    lengths = [quotient + (i < remainder) for i in range(owners)]
    assert [shard[owner] for owner in chosen] == lengths
    assert sum(shard) == elements


def collective(elements, members, mode="exact", operation="allreduce"):
    return native.Collective(
        "x",
        mode=mode,
        members=list(range(members)),
        elements=elements,
        description="x",
        fingerprint=1,
        wire_format="float32",
        operation=operation,
    )


@hypothesis.given(
    elements=st.integers(0, 20_000),
    members=st.integers(1, 64),
    least=st.integers(1, 5000),
    identity=st.integers(0, 2**32 - 1),
)
def test_a_shard_has_the_least_bytes_or_its_bucket_one_owner(
    elements, members, least, identity
):
    first, count = native.owners_of(collective(elements, members), identity, least)
    assert 0 <= first < members
    assert 1 <= count <= members
    assert count == 1 or 4 * elements // count >= least
    # One more owner would have less.
    assert count == members or 4 * elements // (count + 1) < least


def test_the_identity_of_a_collective_chooses_its_owners():
    small = collective(256, 8)
    firsts = {native.owners_of(small, identity, 1024)[0] for identity in range(100)}
    assert firsts == set(range(8))


@pytest.mark.parametrize("mode", ["agreed", "bounded", "lossy"])
def test_where_late_data_is_not_waited_for_every_member_owns_a_shard(mode):
    assert native.owners_of(collective(8, 8, mode), 5, 1024) == (0, 8)


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
def test_with_one_stage_every_member_owns_a_shard(operation):
    small = collective(8, 8, operation=operation)
    assert native.owners_of(small, 5, 1024) == (0, 8)
