"""The wire format: encoded values are parsed, and other bytes are rejected."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native
from jax_optireduce import _native

CONTRIBUTION, MEMBERSHIP, GAVE_UP = 1, 7, 9
KINDS = range(1, 12)
VERSION = _native.wire_version()


def make_header(kind: int, last: int, **fields: int) -> native.Header:
    """A header; its last field has two meanings on the wire."""
    name = "note" if kind in (CONTRIBUTION, GAVE_UP, MEMBERSHIP) else "contributors"
    return native.Header(kind=kind, **fields, **{name: last})


headers = st.builds(
    make_header,
    kind=st.sampled_from(KINDS),
    flags=st.integers(0, 255),
    source=st.integers(0, 65535),
    session=st.integers(0, 2**32 - 1),
    collective=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**32 - 1),
    segment=st.integers(0, 2**32 - 1),
    number=st.integers(0, 2**48 - 1),
    last=st.integers(0, 65535),
)


def datagram(header: bytes) -> bytes:
    return header.ljust(native.OVERHEAD_BYTES, b"\0")


@hypothesis.given(headers)
def test_every_header_is_read_as_it_was_written(header):
    assert native.parse_header(datagram(native.encode_header(header))) == header


@hypothesis.given(st.integers(0, 10**6), st.floats(0, 1000))
def test_the_note_of_a_sender_is_about_what_was_written(calls, since_call):
    read_calls, read_since_call = native.sender_note(calls, since_call)
    assert read_calls == min(calls, 63)
    assert read_since_call <= since_call + 1e-9
    assert read_since_call >= since_call / 1.04 - 2e-6


@hypothesis.given(st.integers(0, 65535))
def test_any_note_has_a_meaning(code):
    calls, since_call = native.parse_sender_note(code)
    assert 0 <= calls <= 63
    assert since_call >= 0


def test_header_and_tag_cost_forty_bytes():
    assert native.HEADER_BYTES == 28
    assert native.OVERHEAD_BYTES == 40


def test_header_is_little_endian_at_the_documented_offsets():
    header = native.Header(
        kind=2,
        flags=3,
        source=0x0405,
        session=0x06070809,
        collective=0x0A0B0C0D,
        sequence=0x0E0F1011,
        segment=0x12131415,
        number=0x161718191A1B,
        contributors=7,
    )
    assert native.encode_header(header).hex() == (
        f"{VERSION:x}2030504090807060d0c0b0a11100f0e151413121b1a191817160700"
    )


@hypothesis.given(headers, st.integers(0, 39))
def test_a_datagram_shorter_than_header_and_tag_is_malformed(header, size):
    truncated = datagram(native.encode_header(header))[:size]
    assert native.parse_header(truncated) == "malformed"


@hypothesis.given(
    headers, st.integers(0, 15).filter(lambda version: version != VERSION)
)
def test_another_version_is_named_as_such(header, version):
    encoded = bytearray(datagram(native.encode_header(header)))
    encoded[0] = version << 4 | encoded[0] & 0xF
    assert native.parse_header(bytes(encoded)) == "version"


@hypothesis.given(headers, st.sampled_from([0, *range(12, 16)]))
def test_an_unknown_kind_is_malformed(header, kind):
    encoded = bytearray(datagram(native.encode_header(header)))
    encoded[0] = VERSION << 4 | kind
    assert native.parse_header(bytes(encoded)) == "malformed"


announcements = st.builds(
    native.Collective,
    st.text(max_size=50),
    mode=st.sampled_from(["exact", "agreed", "bounded", "lossy"]),
    members=st.sets(st.integers(0, 1023), min_size=1).map(sorted),
    elements=st.integers(0, 2**37),
    description=st.text(max_size=100),
    fingerprint=st.integers(0, 2**64 - 1),
    # Two stages have a whole number of nanoseconds each.
    deadline_s=st.integers(1, 43_000 * 10**9).map(lambda ns: 2 * ns / 1e9),
    wire_format=st.sampled_from(["float32", "bfloat16", "int8", "float4"]),
)


@hypothesis.given(announcements)
def test_every_announcement_is_read_as_it_was_written(announcement):
    payload = native.encode_announcement(announcement, 1432)
    assert native.parse_announcement(payload, 1024) == announcement


@hypothesis.given(announcements, st.integers(0, 1023))
def test_an_announcement_with_a_member_beyond_the_world_is_refused(
    announcement, world_size
):
    payload = native.encode_announcement(announcement, 1432)
    inside = announcement.members[-1] < world_size
    assert (native.parse_announcement(payload, world_size) is not None) == inside


@hypothesis.given(announcements, st.binary(min_size=1, max_size=9))
def test_an_announcement_with_bytes_behind_its_end_is_refused(announcement, more):
    payload = native.encode_announcement(announcement, 1432)
    assert native.parse_announcement(payload + more, 1024) is None


@hypothesis.given(announcements, st.data())
def test_a_cut_announcement_is_refused(announcement, data):
    payload = native.encode_announcement(announcement, 1432)
    size = data.draw(st.integers(0, len(payload) - 1))
    assert native.parse_announcement(payload[:size], 1024) is None


@hypothesis.given(st.binary(max_size=1500))
def test_arbitrary_bytes_are_read_or_refused_but_never_crash(payload):
    native.parse_header(payload)
    native.parse_announcement(payload, 1024)
