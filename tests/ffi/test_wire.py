"""The wire format: what is written is read, and nothing else is."""

import hypothesis
from hypothesis import strategies as st

from jax_optireduce import _testing

KINDS = range(1, 7)

headers = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 255),
    st.integers(0, 65535),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**48 - 1),
    st.integers(0, 65535),
)


def datagram(header: bytes) -> bytes:
    return header.ljust(_testing.OVERHEAD_BYTES, b"\0")


@hypothesis.given(headers)
def test_every_header_is_read_as_it_was_written(header):
    assert _testing.parse_header(datagram(_testing.encode_header(header))) == header


def test_header_and_tag_cost_forty_bytes():
    assert _testing.HEADER_BYTES == 28
    assert _testing.OVERHEAD_BYTES == 40


def test_header_is_little_endian_at_the_documented_offsets():
    header = (
        2,
        3,
        0x0405,
        0x06070809,
        0x0A0B0C0D,
        0x0E0F1011,
        0x12131415,
        0x161718191A1B,
        7,
    )
    assert _testing.encode_header(header).hex() == (
        "22030504090807060d0c0b0a11100f0e151413121b1a191817160700"
    )


@hypothesis.given(headers, st.integers(0, 39))
def test_a_datagram_shorter_than_header_and_tag_is_malformed(header, size):
    truncated = datagram(_testing.encode_header(header))[:size]
    assert _testing.parse_header(truncated) == "malformed"


@hypothesis.given(headers, st.integers(0, 15).filter(lambda version: version != 2))
def test_another_version_is_named_as_such(header, version):
    encoded = bytearray(datagram(_testing.encode_header(header)))
    encoded[0] = version << 4 | encoded[0] & 0xF
    assert _testing.parse_header(bytes(encoded)) == "version"


@hypothesis.given(headers, st.sampled_from([0, *range(8, 16)]))
def test_an_unknown_kind_is_malformed(header, kind):
    encoded = bytearray(datagram(_testing.encode_header(header)))
    encoded[0] = 2 << 4 | kind
    assert _testing.parse_header(bytes(encoded)) == "malformed"


announcements = st.tuples(
    st.text(max_size=50),
    st.text(max_size=100),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**37),
    st.booleans(),
    st.floats(1e-6, 86_000),
    st.sets(st.integers(0, 1023), min_size=1).map(sorted),
)


@hypothesis.given(announcements)
def test_every_announcement_is_read_as_it_was_written(announcement):
    name, description, fingerprint, elements, drop, _, members = announcement
    payload = _testing.encode_announcement(*announcement, 1432)
    read = _testing.parse_announcement(payload, 1024)
    assert read == (name, description, fingerprint, elements, drop, members)


@hypothesis.given(announcements, st.integers(0, 1023))
def test_an_announcement_with_a_member_beyond_the_world_is_refused(
    announcement, world_size
):
    payload = _testing.encode_announcement(*announcement, 1432)
    inside = announcement[-1][-1] < world_size
    assert (_testing.parse_announcement(payload, world_size) is not None) == inside


@hypothesis.given(announcements, st.binary(min_size=1, max_size=9))
def test_an_announcement_with_bytes_behind_its_end_is_refused(announcement, more):
    payload = _testing.encode_announcement(*announcement, 1432)
    assert _testing.parse_announcement(payload + more, 1024) is None


@hypothesis.given(announcements, st.data())
def test_a_cut_announcement_is_refused(announcement, data):
    payload = _testing.encode_announcement(*announcement, 1432)
    size = data.draw(st.integers(0, len(payload) - 1))
    assert _testing.parse_announcement(payload[:size], 1024) is None


@hypothesis.given(st.binary(max_size=1500))
def test_arbitrary_bytes_are_read_or_refused_but_never_crash(payload):
    _testing.parse_header(payload)
    _testing.parse_announcement(payload, 1024)
