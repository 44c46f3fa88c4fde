"""Forged datagrams during calls increment a counter and have no other effect."""

import pytest

import optireduce_testing as native


@pytest.mark.parametrize("encrypt", [False, True])
def test_no_forged_datagram_has_an_effect(encrypt):
    made, effects, counters = native.forge(100_000, 1, encrypt)
    assert all(made.values()), "every kind must be tried"
    assert not any(effects.values()), effects
    assert counters["calls_completed"] > 100
    refused = {k: v for k, v in counters.items() if k.startswith("rejected")}
    assert sum(refused.values()) >= sum(made.values())
    for reason in ("foreign", "malformed", "unauthenticated", "replayed", "version"):
        assert refused[f"rejected_{reason}"] > 0
