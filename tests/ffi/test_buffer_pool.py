"""Memory that is taken and given back, and what of it is kept for the next."""

import itertools

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native


def test_memory_that_was_given_back_is_taken_again():
    pool = native.BufferPool()
    address = pool.take(0, 4096)
    pool.give_back(0)
    assert pool.take(1, 4096) == address


def test_a_smaller_buffer_takes_memory_that_is_less_than_twice_too_large():
    pool = native.BufferPool()
    address = pool.take(0, 4096)
    pool.give_back(0)
    assert pool.take(1, 3000) == address
    assert (pool.size_of(1), pool.used_bytes) == (3000, 3000)


def test_a_much_smaller_buffer_leaves_large_memory_for_others():
    pool = native.BufferPool()
    large = pool.take(0, 1 << 20)
    pool.give_back(0)
    assert pool.take(1, 16) != large
    assert pool.take(2, 1 << 20) == large


def test_the_memory_that_fits_best_is_taken():
    pool = native.BufferPool()
    loose, tight = pool.take(0, 4000), pool.take(1, 3000)
    pool.give_back(0)
    pool.give_back(1)
    assert pool.take(2, 2900) == tight
    assert pool.take(3, 2900) == loose


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 10_000)), max_size=60)
)
def test_the_used_bytes_are_those_of_the_buffers_that_are_out(steps):
    pool = native.BufferPool()
    sizes: dict[int, int] = {}
    addresses: dict[int, int] = {}
    for name, size in steps:
        if name in sizes:
            pool.give_back(name)
            del sizes[name], addresses[name]
        else:
            addresses[name] = pool.take(name, size)
            sizes[name] = size
        assert pool.used_bytes == sum(sizes.values())
        assert [pool.size_of(each) for each in sizes] == list(sizes.values())
        # No two of them share memory.
        spans = sorted((addresses[each], sizes[each]) for each in sizes)
        for (at, length), (following, _) in itertools.pairwise(spans):
            assert at + length <= following
