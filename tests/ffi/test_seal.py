"""Keys and tags: RFC 5869 and the GCM specification, computed independently."""

import hashlib
import hmac

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

TAG_BYTES = 12

keys = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 2**64 - 1)
protections = st.sampled_from(["authenticate", "encrypt"])
libraries = st.sampled_from(native.cipher_libraries())


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, from Python's own HMAC."""
    key = hmac.digest(salt or bytes(32), secret, hashlib.sha256)
    output = block = b""
    while len(output) < length:
        counter = bytes([len(output) // 32 + 1])
        block = hmac.digest(key, block + info + counter, hashlib.sha256)
        output += block
    return output[:length]


def multiply_in_aes_field(a: int, b: int) -> int:
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << (bit - 8)
    return product


def substitution_table() -> list[int]:
    """The S-box of AES: inverse in GF(2^8), then an affine map (FIPS 197, 5.1.1)."""
    inverse = [0] * 256
    for a in range(1, 256):
        inverse[a] = next(b for b in range(256) if multiply_in_aes_field(a, b) == 1)
    table = []
    for value in inverse:
        turned = [((value << k) | (value >> (8 - k))) & 0xFF for k in range(5)]
        table.append(0x63 ^ turned[0] ^ turned[1] ^ turned[2] ^ turned[3] ^ turned[4])
    return table


SUBSTITUTION = substitution_table()


def aes_128_encrypt(key: bytes, block: bytes) -> bytes:
    """One block (FIPS 197)."""
    words = [list(key[i : i + 4]) for i in range(0, 16, 4)]
    constant = 1
    for i in range(4, 44):
        word = words[i - 1]
        if i % 4 == 0:
            word = [SUBSTITUTION[b] for b in word[1:] + word[:1]]
            word[0] ^= constant
            constant = multiply_in_aes_field(constant, 2)
        words.append([a ^ b for a, b in zip(words[i - 4], word, strict=True)])
    expanded = [byte for word in words for byte in word]
    round_keys = [expanded[16 * r : 16 * r + 16] for r in range(11)]

    state = [a ^ b for a, b in zip(block, round_keys[0], strict=True)]
    for r in range(1, 11):
        state = [SUBSTITUTION[b] for b in state]
        state = [state[(i + 4 * (i % 4)) % 16] for i in range(16)]
        if r < 10:
            columns = [state[column : column + 4] for column in range(0, 16, 4)]
            state = [
                multiply_in_aes_field(c[i], 2)
                ^ multiply_in_aes_field(c[(i + 1) % 4], 3)
                ^ c[(i + 2) % 4]
                ^ c[(i + 3) % 4]
                for c in columns
                for i in range(4)
            ]
        state = [a ^ b for a, b in zip(state, round_keys[r], strict=True)]
    return bytes(state)


def gcm_tag(key: bytes, nonce: bytes, associated: bytes, ciphertext: bytes) -> bytes:
    """The 16-byte tag of NIST SP 800-38D over encrypted data."""
    point = int.from_bytes(aes_128_encrypt(key, bytes(16)), "big")
    lengths = (8 * len(associated)).to_bytes(8, "big")
    lengths += (8 * len(ciphertext)).to_bytes(8, "big")
    padded = b"".join(
        part + bytes(-len(part) % 16) for part in (associated, ciphertext, lengths)
    )
    value = 0
    for i in range(0, len(padded), 16):
        x, y, value = value ^ int.from_bytes(padded[i : i + 16], "big"), point, 0
        for bit in range(127, -1, -1):
            if x >> bit & 1:
                value ^= y
            y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
    mask = aes_128_encrypt(key, nonce + (1).to_bytes(4, "big"))
    return (value ^ int.from_bytes(mask, "big")).to_bytes(16, "big")


def gmac(key: bytes, number: int, content: bytes) -> bytes:
    nonce = number.to_bytes(8, "little") + bytes(4)
    return gcm_tag(key, nonce, content, b"")[:TAG_BYTES]


def gcm_encrypt(key: bytes, number: int, payload: bytes) -> bytes:
    """Counter mode from 2 on (NIST SP 800-38D, 7.1); 1 makes the tag's mask."""
    nonce = number.to_bytes(8, "little") + bytes(4)
    stream = b"".join(
        aes_128_encrypt(key, nonce + counter.to_bytes(4, "big"))
        for counter in range(2, 2 + (len(payload) + 15) // 16)
    )
    return bytes(a ^ b for a, b in zip(payload, stream, strict=False))


def test_the_reference_for_keys_gives_the_answers_of_rfc_5869():
    secret = b"\x0b" * 22
    expanded = hkdf_sha256(
        secret, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42
    )  # A.1
    assert expanded.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
        "34007208d5b887185865"
    )
    expanded = hkdf_sha256(secret, b"", b"", 42)  # A.3
    assert expanded.hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
        "9d201395faa4b61a96c8"
    )


@pytest.mark.parametrize(
    ("key", "nonce", "associated", "ciphertext", "tag"),
    [  # Test cases 1, 2 and 4 of McGrew and Viega, "The Galois/Counter Mode".
        ("00" * 16, "00" * 12, "", "", "58e2fccefa7e3061367f1d57a4e7455a"),
        (
            "00" * 16,
            "00" * 12,
            "",
            "0388dace60b6a392f328c2b971b2fe78",
            "ab6e47d42cec13bdf53a67b21257bddf",
        ),
        (
            "feffe9928665731c6d6a8f9467308308",
            "cafebabefacedbaddecaf888",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            (
                "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
                "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091"
            ),
            "5bc94fbc3221a5db94fae95ae7121a47",
        ),
    ],
)
def test_the_reference_for_tags_gives_the_answers_of_gcm(
    key, nonce, associated, ciphertext, tag
):
    given = [bytes.fromhex(text) for text in (key, nonce, associated, ciphertext)]
    assert gcm_tag(*given).hex() == tag


@pytest.mark.parametrize("library", native.cipher_libraries())
def test_the_tag_of_nothing_is_the_known_answer(library):
    _, tag = native.Sealer(bytes(16), library=library).seal(0, b"")
    assert tag.hex() == "58e2fccefa7e3061367f1d57"


@pytest.mark.parametrize("library", native.cipher_libraries())
def test_one_encrypted_block_is_the_known_answer(library):
    # Test case 2 of McGrew and Viega: a key, a nonce and a block of zeros.
    sealer = native.Sealer(bytes(16), "encrypt", library)
    sealed, tag = sealer.seal(0, bytes(16), header_bytes=0)
    assert sealed.hex() == "0388dace60b6a392f328c2b971b2fe78"
    assert tag.hex() == "ab6e47d42cec13bdf53a67b2"


@hypothesis.given(
    st.binary(min_size=32, max_size=32), st.text(st.characters(codec="ascii"))
)
def test_keys_are_hkdf_of_the_secret(secret, info):
    expected = hkdf_sha256(secret, b"", info.encode(), 16)
    assert native.derive_key(secret, info) == expected


@hypothesis.settings(max_examples=50)
@hypothesis.given(libraries, keys, numbers, st.binary(max_size=400), st.integers(0, 40))
def test_tags_are_gmac(library, key, number, content, header_bytes):
    sealer = native.Sealer(key, library=library)
    sealed, tag = sealer.seal(number, content, min(header_bytes, len(content)))
    assert (sealed, tag) == (content, gmac(key, number, content))


@hypothesis.settings(max_examples=50)
@hypothesis.given(
    libraries, keys, numbers, st.binary(max_size=40), st.binary(max_size=200)
)
def test_encryption_is_gcm(library, key, number, header, payload):
    sealer = native.Sealer(key, "encrypt", library)
    sealed, tag = sealer.seal(number, header + payload, len(header))
    encrypted = gcm_encrypt(key, number, payload)
    nonce = number.to_bytes(8, "little") + bytes(4)
    assert sealed == header + encrypted
    assert tag == gcm_tag(key, nonce, header, encrypted)[:TAG_BYTES]


@hypothesis.given(
    libraries,
    keys,
    protections,
    st.lists(
        st.tuples(numbers, st.binary(max_size=30), st.binary(max_size=66_000)),
        max_size=10,
    ),
)
def test_a_datagram_depends_on_neither_those_before_nor_the_library(
    library, key, protection, datagrams
):
    used = native.Sealer(key, protection, library)
    for number, header, payload in datagrams:
        given = (number, header + payload, len(header))
        sealed, tag = used.seal(*given)
        assert (sealed, tag) == native.Sealer(key, protection, "libcrypto").seal(*given)
        assert used.open(number, sealed, tag, len(header)) == payload


@hypothesis.given(
    libraries,
    keys,
    protections,
    numbers,
    st.binary(min_size=1, max_size=30),
    st.binary(min_size=1, max_size=1500),
    st.data(),
)
def test_any_changed_bit_is_noticed(
    library, key, protection, number, header, payload, data
):
    def flip(given: bytes, name: str) -> bytes:
        bit = data.draw(st.integers(0, 8 * len(given) - 1), label=name)
        changed = bytearray(given)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    sealer = native.Sealer(key, protection, library)
    size = len(header)
    sealed, tag = sealer.seal(number, header + payload, size)
    other_number = int.from_bytes(
        flip(number.to_bytes(8, "little"), "number"), "little"
    )
    assert sealer.open(number, sealed, flip(tag, "tag"), size) is None
    assert sealer.open(number, flip(sealed, "content"), tag, size) is None
    assert sealer.open(other_number, sealed, tag, size) is None
    other = native.Sealer(flip(key, "key"), protection, library)
    assert other.open(number, sealed, tag, size) is None
    assert sealer.open(number, sealed, tag, size) == payload


@hypothesis.given(keys, numbers, st.binary(max_size=100))
def test_without_protection_the_tag_is_zeros_and_not_looked_at(key, number, content):
    sealer = native.Sealer(key, "none")
    assert sealer.seal(number, content) == (content, bytes(TAG_BYTES))
    assert sealer.open(number, content, b"\xff" * TAG_BYTES) == content
