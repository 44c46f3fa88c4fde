"""Announcements of collectives: which are accepted, and the names that they carry."""

import struct

import numpy as np
import pytest
from session import Session

import optireduce_testing as native

# Source: EncodeAnnouncement in ffi/protocol/wire/wire.cc.
HEAD = "<QBBBBQQQ"
FIELDS = (
    "fingerprint",
    "element_type",
    "wire_format",
    "reduce_scatter",
    "all_gather",
    "elements",
    "reduce_scatter_deadline",
    "all_gather_deadline",
)
# Source: ElementType, LatePolicy and WireFormat.
INT32, DROP, BFLOAT16, DAY_NS = 4, 1, 1, 86_400 * 10**9
# Source: kCollectivesMax of ffi/protocol/collective/directory.cc.
COLLECTIVES_MAX = 1 << 16


def encoded(name: str) -> bytes:
    """The announcement of a lossy collective of two."""
    collective = native.Collective(
        name, mode="lossy", members=[0, 1], elements=10, description="x"
    )
    return native.encode_announcement(collective, 1000)


def announcement(members=(0, 1), **changes: int) -> bytes:
    """The announcement of a lossy collective, with some numbers replaced."""
    payload = encoded("x")
    head_bytes = struct.calcsize(HEAD)
    numbers = dict(zip(FIELDS, struct.unpack(HEAD, payload[:head_bytes]), strict=True))
    bitmap = bytes([sum(1 << member for member in members)])
    behind = payload[head_bytes + 3 :]
    return struct.pack(HEAD, *(numbers | changes).values()) + b"\1\0" + bitmap + behind


def is_read(payload: bytes) -> bool:
    return native.parse_announcement(payload, 2) is not None


def test_a_bucket_may_have_so_many_elements_and_no_more():
    assert is_read(announcement(elements=2**37))
    assert not is_read(announcement(elements=2**37 + 1))


@pytest.mark.parametrize("stage", ["reduce_scatter_deadline", "all_gather_deadline"])
def test_a_deadline_may_be_a_day_and_no_longer(stage):
    assert is_read(announcement(**{stage: DAY_NS}))
    assert not is_read(announcement(**{stage: DAY_NS + 1}))
    assert not is_read(announcement(**{stage: 2**64 - 1}))


def test_a_collective_has_members():
    assert is_read(announcement(members=[1]))
    assert not is_read(announcement(members=[]))


def test_only_floats_are_rounded():
    assert is_read(announcement(wire_format=BFLOAT16))
    assert is_read(announcement(element_type=INT32))
    assert not is_read(announcement(element_type=INT32, wire_format=BFLOAT16))


def test_collectives_that_differ_in_anything_have_another_identity():
    others = [
        announcement(),
        announcement(members=[0]),
        announcement(fingerprint=2),
        announcement(element_type=INT32),
        announcement(wire_format=BFLOAT16),
        announcement(reduce_scatter=0, all_gather=0),
        announcement(elements=11),
        announcement(reduce_scatter_deadline=10**9),
        announcement(all_gather_deadline=10**9),
        encoded("y"),
    ]
    identities = [native.announcement_id(payload, 2) for payload in others]
    assert len(set(identities)) == len(others)


def names_of_one_identity(session: Session) -> tuple[str, str]:
    """Names of the collective of `Session.submit()`, with 10 elements."""
    known: dict[int, str] = {}
    for number in range(1_000_000):
        name = f"{number:x}"
        payload = native.encode_announcement(session.collective(10, name=name), 1000)
        other = known.setdefault(native.announcement_id(payload, 2), name)
        if other != name:
            return other, name
    raise AssertionError("32 bits do not repeat by chance among a million")


def test_names_of_one_identity_are_an_error_and_not_one_collective():
    session = Session(2)
    one, other = names_of_one_identity(session)
    for rank in range(2):
        array = np.ones(10, np.float32)
        assert session.submit(rank, array, name=one) == ""
        refused = session.submit(rank, np.ones(10, np.float32), name=other, token=1)
        assert "have the same 32-bit identity by chance" in refused
        assert f"'{one}: float32[10]'" in refused
    session.run(0.1)
    assert [set(done) for done in session.done] == [{0}, {0}]


def test_collectives_have_a_bound():
    endpoint = native.Endpoint(0, 1, bytes(32))
    one = np.ones(1, np.float32)
    known = 0
    for number in range(2 * COLLECTIVES_MAX):
        name = str(number)
        collective = native.Collective(name, members=[0], elements=1, description=name)
        refused = endpoint.submit(0.0, collective, one, token=number)
        if refused and "identity by chance" not in refused:
            break
        known += refused == ""
    assert known == COLLECTIVES_MAX
    assert f"more than {COLLECTIVES_MAX} different collectives" in refused
    assert "the shapes of a step should not change each time" in refused


def test_names_of_one_identity_on_two_ranks_are_an_error_on_both():
    session = Session(2)
    names = names_of_one_identity(session)
    for rank, name in enumerate(names):
        assert session.submit(rank, np.ones(10, np.float32), name=name) == ""
    session.run(0.1)
    for rank, name in enumerate(names):
        assert "have the same 32-bit identity by chance" in session.done[rank][0].error
        again = session.submit(rank, np.ones(10, np.float32), name=name, sequence=1)
        assert "have the same 32-bit identity by chance" in again
