"""Wrong options and arguments: an error at the call, and nothing is sent."""

import numpy as np
import pytest
from session import SECRET, Session

import optireduce_testing as native


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "n" * 201}, "may have 200 bytes, got 201"),
        ({"members": [1, 0]}, "must be ascending ranks"),
        ({"members": [0, 0]}, "must be ascending ranks"),
        ({"members": []}, "must be ascending ranks"),
        ({"members": [0, 2]}, "must be ascending ranks"),
        ({"members": [1]}, "contain this rank"),
        ({"mode": "bounded", "deadline_s": 0}, "positive deadlines"),
        ({"mode": "bounded", "operation": "all_gather"}, "all_gather with wait"),
    ],
)
def test_a_wrong_collective_is_refused_at_its_call(wrong, message):
    session = Session(2)
    right = {"name": "x", "members": [0, 1], "elements": 10}
    array = np.ones(10, np.float32)
    refused = session.ranks[0].submit(
        1.0, native.Collective(**(right | wrong)), array, 0, 0, False
    )
    assert message in refused
    # The right one is taken after it, and gets the sum.
    for rank in range(2):
        assert session.submit(rank, np.ones(10, np.float32), token=1) == ""
    session.run(0.1)
    assert [set(done) for done in session.done] == [{1}, {1}]


def test_the_number_of_a_final_drain_is_no_step():
    session = Session(2)
    refused = session.submit(0, np.ones(10, np.float32), sequence=2**32 - 1)
    assert f"must be below {2**32 - 1}" in refused


@pytest.mark.parametrize(
    ("rank", "world_size", "options", "message"),
    [
        (0, 0, {}, "the world size must be 1 to"),
        (2, 2, {}, "the rank below it, got rank 2 of 2"),
        (0, 2, {"datagram_bytes_max": 100}, "datagrams must have"),
        (0, 4, {"ranks_per_slice": 3}, "slices of 3 ranks must divide the 4 ranks"),
        (0, 4, {"ranks_per_slice": 0}, "slices of 0 ranks must divide the 4 ranks"),
    ],
)
def test_wrong_options_are_an_error(rank, world_size, options, message):
    with pytest.raises(ValueError, match=message):
        native.Endpoint(rank, world_size, SECRET, **options)
