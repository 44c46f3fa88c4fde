"""The longest datagram of a session: its limits, and the search on the paths."""

import pytest

from jax_optireduce._errors import RendezvousError
from jax_optireduce._session import paths

ONE_HOST = ["127.0.0.1"] * 4


@pytest.mark.parametrize(
    ("addresses", "receive_buffer_bytes", "expected"),
    [
        (ONE_HOST, 8 << 20, 65_504),
        # Sixteen for each of three peers.
        (ONE_HOST, 1 << 20, 21_840),
        # The usual limit of Linux.
        (ONE_HOST, 212_992, 8972),
        (["10.0.0.1", "10.0.0.1", "10.0.0.2"], 8 << 20, 8972),
        (["127.0.0.1"], 8 << 20, 65_504),
    ],
)
def test_datagrams_are_longer_where_all_processes_are_on_one_host(
    addresses, receive_buffer_bytes, expected
):
    got = paths.default_datagram_bytes(addresses, receive_buffer_bytes)
    assert got == expected


@pytest.mark.parametrize(
    ("datagram_bytes", "header_bytes", "first", "last"),
    [
        (65_504, 28, [8972, 8923, 8868, 8472, 3872, 1472], [1372, 1252, 548]),
        (8868, 28, [8472, 3872, 1472, 1452, 1432, 1422], [1372, 1252, 548]),
        (1472, 28, [1452, 1432, 1422, 1392], [1372, 1252, 548]),
        (1452, 48, [1432, 1412, 1402, 1372], [1352, 1232, 548]),
        (1000, 28, [548], [548]),
        (548, 28, [], []),
    ],
)
def test_shorter_datagrams_are_those_of_known_mtus(
    datagram_bytes, header_bytes, first, last
):
    lengths = paths.shorter_datagrams(datagram_bytes, header_bytes)
    assert lengths[: len(first)] == first
    assert lengths[-3:] == last


class Network:
    """Stands in for a communicator of rank 0.

    Attributes:
        limits: by peer, the longest datagrams that pass; 0: not even short ones.
        probed: the lengths of each probe.
    """

    def __init__(self, *limits):
        self.limits = dict(enumerate(limits, start=1))
        self.passed = dict.fromkeys(self.limits, 0)
        self.probed = []

    def probe_paths(self, lengths):
        self.probed.append(list(lengths))
        for peer, limit in self.limits.items():
            arriving = [length for length in lengths if length <= limit]
            self.passed[peer] = max([self.passed[peer], *arriving])

    def unproven_paths(self):
        longest = self.probed[0][0]
        return [
            (0, peer, self.limits[peer] > 0, self.limits[peer] > 0, passed)
            for peer, passed in self.passed.items()
            if passed < longest
        ]


PEERS = [(f"10.0.0.{rank}", [41_000]) for rank in range(4)]
LENGTHS = [8972, 8472, 1472, 1252, 548]


@pytest.fixture
def prove(monkeypatch):
    """Proves the paths of a network in little time."""
    monkeypatch.setattr(paths, "_PROVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(paths, "_SHORTER_AFTER_S", 0.01)
    return lambda network, lengths: paths.prove(
        network, 0, "connected", PEERS, lengths, 1.0
    )


def test_paths_of_the_longest_datagrams_see_no_shorter_ones(prove):
    network = Network(9000, 8972, 8972)
    assert prove(network, LENGTHS) == paths.Proof(0, 0, 8972, "")
    assert network.probed == [[8972]]


def test_the_path_with_the_shortest_datagrams_counts(prove):
    assert prove(Network(8972, 1300, 8500), LENGTHS) == paths.Proof(0, 2, 1252, "")


def test_a_given_length_has_to_pass(prove):
    proof = prove(Network(8972, 1300, 8972), [1472])
    assert (proof.to, proof.passed_bytes) == (2, 0)
    assert "datagrams of 1472 bytes to rank 2 at 10.0.0.2, UDP port" in proof.error
    assert "short ones do" in proof.error


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (300, "datagrams of 548 bytes to rank 3 at 10.0.0.3"),
        (0, "no datagram ever came from rank 3 at 10.0.0.3"),
    ],
)
def test_a_path_without_any_length_counts_before_a_short_one(prove, limit, text):
    proof = prove(Network(1300, 8972, limit), LENGTHS)
    assert (proof.to, proof.passed_bytes) == (3, 0)
    assert proof.error.startswith(f"rank 0: {text}")


def test_all_ranks_agree_on_the_shortest_datagrams():
    proofs = [
        paths.Proof(0, 1, 8472, ""),
        paths.Proof(1, 2, 1252, ""),
        paths.Proof(2, 1, 1252, ""),
        paths.Proof(3, 3, 8972, ""),
    ]
    assert {paths.agree(own, proofs) for own in proofs} == {proofs[1]}


def test_a_blocked_path_is_an_error_on_all_ranks():
    proofs = [
        paths.Proof(0, 1, 1252, ""),
        paths.Proof(1, 2, 0, "first"),
        paths.Proof(2, 1, 0, "second"),
    ]
    for own, error in zip(proofs, ["first", "first", "second"], strict=True):
        with pytest.raises(RendezvousError, match=error):
            paths.agree(own, proofs)
